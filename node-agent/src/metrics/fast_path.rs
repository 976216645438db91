//! The flow cache's figures: tunnels and pods by path, reasons, how full the maps are, the epoch.

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::Count;
use crate::fast_path::{Amount, EndpointAmounts, FastPath, Pressure, Tunnel};

/// One figure of a family of counters.
type Family = (&'static str, &'static str, Vec<Count>);

/// Writes all of them. What cannot be read is left out, with a warning in the log.
pub(super) fn encode(
    cache: &dyn FastPath,
    pressure: Result<Vec<Pressure>, String>,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let mut families = Vec::new();
    if let Some(list) = readable("tunnels", cache.tunnels()) {
        families.extend(tunnels(&list));
    }
    if let Some(list) = readable("endpoints", cache.endpoints()) {
        families.extend(endpoints(&list));
    }
    if let Some(list) = readable("reasons", cache.reasons()) {
        let count =
            |(reason, value): (&str, u64)| Count { labels: vec![("reason", reason.to_owned())], value };
        let list = list.into_iter().map(count).collect();
        families.push((
            "packet_reasons",
            "Packets by what was special about them; see docs/datapath.md",
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
        write(encoder, "map_entries", "Entries of a map of the flow cache", MetricType::Gauge, &entries)?;
        write(encoder, "map_capacity", "Entries that a map can hold", MetricType::Gauge, &capacity)?;
    }
    if let Some(epoch) = readable("epoch", cache.epoch()) {
        let help = "Entries of another epoch are not used";
        let gauge = encoder.encode_descriptor("fastpath_epoch", help, None, MetricType::Gauge);
        gauge?.encode_gauge(&i64::from(epoch))?;
    }
    Ok(())
}

fn readable<T>(what: &str, read: Result<T, String>) -> Option<T> {
    read.map_err(|error| tracing::warn!(what, error, "figures of the flow cache cannot be read")).ok()
}

fn write(
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

/// One figure for each path of each direction.
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
        ("tunnel_packets", "Geneve packets", part(|a| a.packets)),
        ("tunnel_bytes", "Geneve bytes, outer headers included", part(|a| a.bytes)),
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
        ("endpoint_packets", "Packets of pods", part(|a| a.packets)),
        ("endpoint_bytes", "Bytes of pods", part(|a| a.bytes)),
    ]
}
