{{/* Where metrics are served: to the node alone, or to Prometheus as well. */}}
{{- define "slipstream.metricsHost" -}}
{{ if .Values.monitoring.enabled }}0.0.0.0{{ else }}127.0.0.1{{ end }}
{{- end }}
