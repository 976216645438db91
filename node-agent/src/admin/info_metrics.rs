//! Prometheus metrics that name things: version, conditions, warnings, and the pod of each container id.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::health::Health;
use crate::kube::pods::Pods;
use crate::node::problems;
use crate::ovs::Ovs;
use crate::ovs::ports::PodPort;

/// Exports them at each scrape.
pub(super) struct InfoCollector {
    health: Health,
    parts: Option<(Ovs, Pods)>,
}

impl InfoCollector {
    /// Of a node with these.
    pub(super) fn new(health: Health, ovs: Ovs, pods: Pods) -> Self {
        Self { health, parts: Some((ovs, pods)) }
    }
}

impl fmt::Debug for InfoCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfoCollector").finish_non_exhaustive()
    }
}

impl Collector for InfoCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Version of the agent; always 1";
        let mut build = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
        build.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?.encode_gauge(&1_i64)?;
        let help = "Conditions of the node; 1 if met. All must be met for pods to start";
        let mut conditions = encoder.encode_descriptor("condition", help, None, MetricType::Gauge)?;
        for (name, reason) in self.health.list() {
            let met = i64::from(reason.is_none());
            conditions.encode_family(&[("condition", name)])?.encode_gauge(&met)?;
        }
        let warnings = i64::try_from(self.health.warnings().len()).unwrap_or(i64::MAX);
        let help = "Number of active warnings of the agent (slipctl status)";
        encoder.encode_descriptor("warnings", help, None, MetricType::Gauge)?.encode_gauge(&warnings)?;
        let Some((ovs, pods)) = &self.parts else { return Ok(()) };
        let ready = i64::from(problems(&self.health, ovs, pods).is_empty());
        let help = "1 if pods can start on the node: all conditions are met, OVS is connected and the pods are known";
        encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?.encode_gauge(&ready)?;
        let ports = ovs.pod_ports();
        let help =
            "Pod of each container id, for joining with the metrics that have the label endpoint; always 1";
        let mut info = encoder.encode_descriptor("endpoint_info", help, None, MetricType::Gauge)?;
        for PodPort { sandbox, iface_id, .. } in &ports {
            let (namespace, pod) = iface_id.split_once('_').unwrap_or(("", iface_id));
            let labels = [("endpoint", sandbox.as_str()), ("namespace", namespace), ("pod", pod)];
            info.encode_family(&labels)?.encode_gauge(&1_i64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn conditions_and_warnings_are_exported() {
        let health = Health::default();
        health.met("cni");
        health.not_met("gateway", "no uplink");
        health.warning("mtu", Some("too small".to_owned()));
        let mut registry = Registry::with_prefix("slipstream_node");
        registry.register_collector(Box::new(InfoCollector { health, parts: None }));
        let mut exported = String::new();
        text::encode(&mut exported, &registry).unwrap();
        for line in [
            r#"slipstream_node_condition{condition="cni"} 1"#,
            r#"slipstream_node_condition{condition="gateway"} 0"#,
            "slipstream_node_warnings 1",
            "slipstream_node_build_info{version=",
        ] {
            assert!(exported.contains(line), "{line} in\n{exported}");
        }
    }
}
