//! Prometheus metric of the XDP program: attached, or why not. What it forwards and drops is counted with the packets' reasons.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::bpf::XdpState;
use crate::datapath::Datapath;

/// Exports it at each scrape.
pub(super) struct XdpCollector(Arc<Datapath>);

impl XdpCollector {
    /// Collector of this datapath.
    pub(super) fn new(datapath: Arc<Datapath>) -> Self {
        Self(datapath)
    }
}

impl fmt::Debug for XdpCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpCollector").finish_non_exhaustive()
    }
}

impl Collector for XdpCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.0.xdp();
        let help =
            "XDP program on the uplink; 1 for the current state: attached, off, or why it is not attached";
        let mut states = encoder.encode_descriptor("fastpath_xdp", help, None, MetricType::Gauge)?;
        for state in XdpState::LABELS {
            let is = i64::from(state == now.as_str());
            states.encode_family(&[("state", state)])?.encode_gauge(&is)?;
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
    fn without_programs_it_is_off() {
        let mut registry = Registry::with_prefix("slipstream_node");
        let datapath = Arc::new(Datapath::ovs_only(true, false, "test"));
        registry.register_collector(Box::new(XdpCollector::new(datapath)));
        let mut exported = String::new();
        text::encode(&mut exported, &registry).unwrap();
        assert!(exported.contains(r#"slipstream_node_fastpath_xdp{state="off"} 1"#), "{exported}");
        assert!(exported.contains(r#"slipstream_node_fastpath_xdp{state="attached"} 0"#), "{exported}");
    }
}
