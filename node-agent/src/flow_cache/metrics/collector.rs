//! Prometheus metrics of the flow cache that are read at each scrape: packets by tunnel, pod and path, reasons, fill level of
//! the maps, epoch.

use api::admin::Amount;
use std::sync::Arc;

use ebpf::layout::reason::Reason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::pressure_cache::PressureCache;
use crate::flow_cache::cache::{CacheError, EndpointAmounts, FlowCache, InterfaceAmounts, Pressure, Tunnel};

/// Exports the node's datapath, and the metrics of the flow cache if the node has one.
#[derive(Debug)]
pub struct DatapathCollector {
    /// `ebpf` or `ovs`.
    path: &'static str,
    /// Why this path was chosen.
    reason: String,
    cache: Option<Arc<dyn FlowCache>>,
    pressure: PressureCache,
}

impl DatapathCollector {
    /// Exports `cache`, on a node whose datapath is `path` because of `reason`. `pressure` is shared with the admin socket,
    /// as reading it iterates over the maps.
    pub fn new(
        path: &'static str,
        reason: &str,
        cache: Option<Arc<dyn FlowCache>>,
        pressure: PressureCache,
    ) -> Self {
        Self { path, reason: reason.to_owned(), cache, pressure }
    }
}

impl Collector for DatapathCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let info = [("path", self.path), ("reason", self.reason.as_str())];
        let help = "Datapath of the node and the reason for it; always 1";
        let mut gauge = encoder.encode_descriptor("datapath", help, None, MetricType::Gauge)?;
        gauge.encode_family(&info)?.encode_gauge(&1_i64)?;
        match self.cache.as_deref() {
            Some(cache) => encode(cache, self.pressure.read(cache), &mut encoder),
            None => Ok(()),
        }
    }
}

/// A sample: labels and value.
pub(super) struct Count {
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: u64,
}

/// A metric family: name, help text, samples.
type Family = (&'static str, &'static str, Vec<Count>);

/// Encodes all metrics of the flow cache. A metric that cannot be read is omitted and logged.
fn encode(
    cache: &dyn FlowCache,
    pressure: Result<Vec<Pressure>, CacheError>,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let mut families = Vec::new();
    if let Some(list) = readable("tunnels", cache.tunnels()) {
        families.extend(tunnels(&list));
    }
    if let Some(list) = readable("endpoints", cache.endpoints()) {
        families.extend(endpoints(&list));
    }
    if let Some(list) = readable("interfaces", cache.interfaces()) {
        families.extend(interfaces(&list));
    }
    if let Some(list) = readable("reasons", cache.reasons()) {
        let count = |(reason, value): &(Reason, u64)| Count {
            labels: vec![("reason", reason.as_str().to_owned())],
            value: *value,
        };
        let malformed = list.iter().filter(|(reason, _)| reason.is_malformed()).map(count).collect();
        families.push(("malformed_packets", "Packets with malformed headers", malformed));
        let list = list.iter().map(count).collect();
        families.push((
            "packet_reasons",
            "Packets by reason for bypassing the flow cache or for a change of an entry; see docs/datapath.md",
            list,
        ));
    }
    for (name, help, list) in families {
        write(encoder, name, help, MetricType::Counter, &list)?;
    }
    if let Some(list) = readable("maps", pressure) {
        let count = |p: &Pressure, value| Count { labels: vec![("map", p.map.to_owned())], value };
        let entries: Vec<_> = list.iter().map(|p| count(p, p.entries)).collect();
        let capacity: Vec<_> = list.iter().map(|p| count(p, p.capacity)).collect();
        write(encoder, "map_entries", "Number of entries in an eBPF map", MetricType::Gauge, &entries)?;
        write(
            encoder,
            "map_capacity",
            "Maximum number of entries in an eBPF map",
            MetricType::Gauge,
            &capacity,
        )?;
    }
    if let Some(epoch) = readable("epoch", cache.epoch()) {
        let help = "Current epoch; entries of any other epoch are invalid";
        let gauge = encoder.encode_descriptor("fastpath_epoch", help, None, MetricType::Gauge);
        gauge?.encode_gauge(&i64::from(epoch))?;
    }
    Ok(())
}

fn readable<T>(what: &str, read: Result<T, CacheError>) -> Option<T> {
    read.map_err(|error| tracing::warn!(what, %error, "metrics of the flow cache cannot be read")).ok()
}

pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    list: &[Count],
) -> Result<(), std::fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for count in list {
        let mut one = family.encode_family(&count.labels)?;
        match kind {
            MetricType::Counter => {
                one.encode_counter::<[(&str, &str); 0], u64, u64>(&count.value, None)?;
            }
            _ => one.encode_gauge(&i64::try_from(count.value).unwrap_or(i64::MAX))?,
        }
    }
    Ok(())
}

/// One sample for each direction and path.
fn by_path<'a>(
    labels: &'a [(&'static str, String)],
    amounts: &'a [(&'static str, &'static str, Amount); 4],
    value: fn(&Amount) -> u64,
) -> impl Iterator<Item = Count> + 'a {
    amounts.iter().map(move |(direction, path, amount)| {
        let more = [("direction", (*direction).to_owned()), ("path", (*path).to_owned())];
        Count { labels: [labels, &more].concat(), value: value(amount) }
    })
}

fn tunnels(list: &[Tunnel]) -> [Family; 2] {
    let part = |value: fn(&Amount) -> u64| {
        let one = |t: &Tunnel| {
            let labels = [("remote", t.remote.to_string()), ("vni", t.vni.to_string())];
            let amounts = [
                ("in", "fast", t.fast_in),
                ("in", "slow", t.slow_in),
                ("out", "fast", t.fast_out),
                ("out", "slow", t.slow_out),
            ];
            by_path(&labels, &amounts, value).collect::<Vec<_>>()
        };
        list.iter().flat_map(one).collect()
    };
    [
        ("tunnel_packets", "Geneve packets by direction and path", part(|a| a.packets)),
        ("tunnel_bytes", "Geneve bytes by direction and path, outer headers included", part(|a| a.bytes)),
    ]
}

fn endpoints(list: &[EndpointAmounts]) -> [Family; 2] {
    let part = |value: fn(&Amount) -> u64| {
        let one = |e: &EndpointAmounts| {
            let labels = [("endpoint", e.endpoint.clone())];
            let amounts = [
                ("from", "fast", e.fast_from),
                ("from", "slow", e.slow_from),
                ("to", "fast", e.fast_to),
                ("to", "slow", e.slow_to),
            ];
            by_path(&labels, &amounts, value).collect::<Vec<_>>()
        };
        list.iter().flat_map(one).collect()
    };
    [
        ("endpoint_packets", "Packets sent and received by an endpoint, by path", part(|a| a.packets)),
        ("endpoint_bytes", "Bytes sent and received by an endpoint, by path", part(|a| a.bytes)),
    ]
}

fn interfaces(list: &[InterfaceAmounts]) -> [Family; 2] {
    let part = |value: fn(&Amount) -> u64| {
        let one = |i: &InterfaceAmounts| {
            let labels = [("interface", i.interface.to_owned())];
            let amounts = [
                ("in", "fast", i.fast_in),
                ("in", "slow", i.slow_in),
                ("out", "fast", i.fast_out),
                ("out", "slow", i.slow_out),
            ];
            by_path(&labels, &amounts, value).collect::<Vec<_>>()
        };
        list.iter().flat_map(one).collect()
    };
    let packets = "Packets that the node received and sent by uplink, gateway bridge and management port, and by interfaces of physical networks together, by path; fast ones of the uplink are those outside of tunnels";
    [
        ("interface_packets", packets, part(|a| a.packets)),
        ("interface_bytes", "Bytes of the packets in interface_packets", part(|a| a.bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_cache::fake::Fake;
    use crate::metrics::Metrics;

    fn exported(path: &'static str, cache: Option<Arc<dyn FlowCache>>) -> String {
        let metrics = Metrics::default();
        metrics.register(|registry| {
            let collector = DatapathCollector::new(path, "asked for", cache, PressureCache::default());
            registry.register_collector(Box::new(collector));
        });
        metrics.encode().unwrap()
    }

    #[test]
    fn packets_are_counted_once_and_by_path() {
        let text = exported("ebpf", Some(Arc::new(Fake::default())));
        for line in [
            r#"slipstream_node_datapath{path="ebpf",reason="asked for"} 1"#,
            r#"slipstream_node_tunnel_packets_total{remote="172.18.0.3",vni="5",direction="out",path="fast"} 7"#,
            r#"slipstream_node_tunnel_bytes_total{remote="172.18.0.3",vni="5",direction="in",path="slow"} 100"#,
            r#"slipstream_node_endpoint_packets_total{endpoint="c0ffee01",direction="to",path="fast"} 3"#,
            r#"slipstream_node_interface_packets_total{interface="bridge",direction="out",path="fast"} 4"#,
            r#"slipstream_node_packet_reasons_total{reason="tcp_flags"} 4"#,
            r#"slipstream_node_map_entries{map="FLOWS"} 3"#,
            r#"slipstream_node_map_capacity{map="FLOWS"} 262144"#,
            "slipstream_node_fastpath_epoch 7",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert_eq!(text.matches("# TYPE slipstream_node_tunnel_packets counter").count(), 1, "{text}");
    }

    #[test]
    fn a_node_without_a_flow_cache_exports_its_datapath_and_why() {
        let text = exported("ovs", None);
        assert!(text.contains(r#"slipstream_node_datapath{path="ovs",reason="asked for"} 1"#), "{text}");
    }
}
