//! Prometheus metrics that name things: version, conditions, warnings, and the pod of each endpoint.

use std::fmt;

use api::NamespacedName;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::attach;
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
    /// Collector of a node with these parts.
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
        let help = "Pod of each endpoint, for joining with the metrics that have the label endpoint, with interface and virtual network if it is not the pod's first; always 1";
        let mut info = encoder.encode_descriptor("endpoint_info", help, None, MetricType::Gauge)?;
        for port in &ports {
            info.encode_family(&labels(port))?.encode_gauge(&1_i64)?;
        }
        Ok(())
    }
}

fn labels(port: &PodPort) -> Vec<(&'static str, String)> {
    let id = port.id();
    let pod = port.pod().unwrap_or_else(|| NamespacedName::new("", port.iface_id.as_str()));
    let interface = (!attach::is_first(&id)).then(|| ("interface", port.pod_interface.clone()));
    let network = port.network().map(|network| ("network", network.to_string()));
    let labels = [("endpoint", id), ("namespace", pod.namespace), ("pod", pod.name)];
    labels.into_iter().chain(interface).chain(network).collect()
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn an_endpoint_has_its_pod_and_only_a_further_interface_its_name() {
        let port = |number, iface_id: &str, interface: &str| PodPort {
            name: attach::Names::of(&attach::interface_id("c1", number)).shim_ovs,
            iface_id: iface_id.to_owned(),
            iface_id_ver: "u".to_owned(),
            sandbox: "c1".to_owned(),
            pod_interface: interface.to_owned(),
            mac: String::new(),
            addresses: String::new(),
        };
        let label = |name, value: &str| (name, value.to_owned());
        let of_pod = [label("namespace", "red"), label("pod", "web.1")];
        let first = labels(&port(0, "red_web.1", "eth0"));
        assert_eq!(first, [&[label("endpoint", "c1")][..], &of_pod].concat());
        let id = attach::interface_id("c1", 1);
        let second = labels(&port(1, "shop.blue_red_web.1", "net1"));
        let further = [label("interface", "net1"), label("network", "shop/blue")];
        assert_eq!(second, [&[label("endpoint", &id)][..], &of_pod, &further].concat());
    }

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
