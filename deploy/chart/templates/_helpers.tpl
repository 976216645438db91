{{/* The image of every container. */}}
{{- define "slipstream.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "slipstream.labels" -}}
app.kubernetes.io/name: slipstream
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels by which the pods of a part are selected. They never change. */}}
{{- define "slipstream.selector" -}}
app.kubernetes.io/name: slipstream
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* The settings of the ConfigMap, and what a pod knows of its node. */}}
{{- define "slipstream.env" -}}
envFrom:
- configMapRef: {name: slipstream}
env:
- name: SLIPSTREAM_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: SLIPSTREAM_HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}

{{/* A new ConfigMap starts the pods again: flags are read at start only. */}}
{{- define "slipstream.checksum" -}}
checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
{{- end }}

{{/* Objects that exist only while a release is removed, in the order of their weight. */}}
{{- define "slipstream.cleanup.hook" -}}
helm.sh/hook: pre-delete,post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* A container that needs no more than its files and network. */}}
{{- define "slipstream.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The image with Open vSwitch: that of the others, unless it stays at one of its own. */}}
{{- define "slipstream.ovs.image" -}}
{{- $own := .Values.ovs.image | default dict }}
{{- get $own "repository" | default .Values.image.repository }}:{{ get $own "tag" | default .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The settings of Open vSwitch, and no others: a pod of its own must not change with those of an agent. */}}
{{- define "slipstream.ovs.env" -}}
env:
- name: SLIPSTREAM_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: SLIPSTREAM_OVS_DATAPATH
  value: {{ .Values.ovs.datapath | quote }}
- name: NO_COLOR
  value: "1"
{{- if eq .Values.ovs.datapath "netdev" }}
# By these two it takes packets whose checksum is left to the device, or does not.
- name: SLIPSTREAM_DATAPATH
  value: {{ .Values.agent.datapath | quote }}
- name: SLIPSTREAM_ATTACH_MODE
  value: {{ .Values.agent.attachMode | quote }}
{{- end }}
{{- end }}

{{/* The container with Open vSwitch. */}}
{{- define "slipstream.ovs" -}}
image: {{ include "slipstream.ovs.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [ovs]
securityContext:
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL], add: [NET_ADMIN, NET_RAW, NET_BROADCAST, SYS_NICE]}
volumeMounts:
- {name: ovs-database, mountPath: /etc/openvswitch}
- {name: ovs-run, mountPath: /run/openvswitch}
{{- if eq .Values.ovs.datapath "netdev" }}
- {name: tun, mountPath: /dev/net/tun}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* What the agent needs of the node, to set up and to take off. */}}
{{- define "slipstream.agent.access" -}}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  appArmorProfile: {type: Unconfined}
  seccompProfile: {type: Unconfined}
  capabilities:
    drop: [ALL]
    add: [BPF, DAC_OVERRIDE, NET_ADMIN, PERFMON, SYS_ADMIN, SYS_NICE]
volumeMounts:
- {name: ovs-run, mountPath: /run/openvswitch}
- {name: slipstream-run, mountPath: /run/slipstream}
- {name: state, mountPath: /var/lib/slipstream}
- {name: cni-conf, mountPath: /etc/cni/net.d}
- {name: cni-bin, mountPath: /opt/cni/bin}
- {name: bpf, mountPath: /sys/fs/bpf, mountPropagation: HostToContainer}
- {name: netns, mountPath: /run/netns, mountPropagation: HostToContainer}
- {name: systemd, mountPath: /run/systemd/netif, readOnly: true}
- {name: network-manager, mountPath: /run/NetworkManager, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* Directories of the node. */}}
{{- define "slipstream.volumes" -}}
- name: ovs-run
  hostPath: {path: {{ .Values.ovs.runDir }}, type: DirectoryOrCreate}
- name: slipstream-run
  hostPath: {path: /run/slipstream, type: DirectoryOrCreate}
- name: state
  hostPath: {path: /var/lib/slipstream, type: DirectoryOrCreate}
- name: cni-conf
  hostPath: {path: {{ .Values.agent.cniConfDir }}, type: DirectoryOrCreate}
- name: cni-bin
  hostPath: {path: {{ .Values.agent.cniBinDir }}, type: DirectoryOrCreate}
- name: bpf
  hostPath: {path: /sys/fs/bpf, type: Directory}
- name: netns
  hostPath: {path: /run/netns, type: DirectoryOrCreate}
- name: systemd
  hostPath: {path: /run/systemd/netif, type: DirectoryOrCreate}
- name: network-manager
  hostPath: {path: /run/NetworkManager, type: DirectoryOrCreate}
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Directories of the node that only Open vSwitch has. */}}
{{- define "slipstream.ovs.volumes" -}}
- name: ovs-database
  hostPath: {path: {{ .Values.ovs.databaseDir }}, type: DirectoryOrCreate}
{{- if eq .Values.ovs.datapath "netdev" }}
- name: tun
  hostPath: {path: /dev/net/tun, type: CharDevice}
{{- end }}
{{- end }}

{{/* Whether the namespace still has a pod of release 0.1.0, in which Open vSwitch was a container beside the agent. Without an API
server, as in `helm template`, it has none. */}}
{{- define "slipstream.old" -}}
{{- range (lookup "v1" "Pod" .Release.Namespace "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- if and (eq (get $labels "app.kubernetes.io/name") "slipstream") (eq (get $labels "app.kubernetes.io/component") "node") }}
{{- range .spec.containers }}{{ if eq .name "ovs" }}yes{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
