//! What the node agents have counted, from their metrics.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::cluster::config::Datapath;
use testbed::metrics::Sample;
use testbed::ui::say;

/// Packets of one tunnel in one direction, by node: (node, labels) to count.
pub(super) type Tunnels = BTreeMap<(String, String), u64>;

const PACKETS: &str = "slipstream_node_tunnel_packets_total";
const PATH: &str = "slipstream_node_datapath";

/// The tunnel counters of all nodes.
pub(super) fn tunnels(bed: &Bed) -> Result<Tunnels> {
    let mut tunnels = Tunnels::new();
    for node in bed.config().node_names() {
        for Sample { labels, value } in bed.agent(&node).metrics()?.samples(PACKETS)? {
            tunnels.insert((node.clone(), labels.to_owned()), value);
        }
    }
    Ok(tunnels)
}

/// `ebpf` or `ovs`, with the reason if the agent reports one.
pub(super) fn node_path(bed: &Bed, node: &str) -> Result<String> {
    let metrics = bed.agent(node).metrics()?;
    let paths = metrics.samples(PATH)?;
    let taken =
        paths.iter().find(|sample| sample.value > 0).context("the agent says nothing about its path")?;
    taken.label("path").map(str::to_owned).context("no path among the labels")
}

/// Prints what was counted meanwhile. With eBPF on the path, each node must have sent and received.
pub(super) fn print(before: &Tunnels, after: &Tunnels, bed: &Bed, checks: &mut Checks) {
    say("Geneve packets seen by the node agents meanwhile:");
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for ((node, labels), value) in after {
        let more =
            value.saturating_sub(before.get(&(node.clone(), labels.clone())).copied().unwrap_or_default());
        let direction = Sample { labels, value: more }.label("direction").unwrap_or_default();
        *sums.entry((node.clone(), direction.to_owned())).or_default() += more;
        say(format_args!("  {node}  {labels}  {more}"));
    }
    for node in bed.config().node_names() {
        let ebpf = node_path(bed, &node).is_ok_and(|p| p.starts_with("ebpf"))
            || sums.keys().any(|(n, _)| *n == node);
        if !ebpf {
            say(format_args!("  {node}  none: no eBPF program is on its path"));
            continue;
        }
        for direction in ["out", "in"] {
            let count = sums.get(&(node.clone(), direction.to_owned())).copied().unwrap_or_default();
            let verdict = if count > 0 {
                Ok(format!("{count} packets"))
            } else {
                Err("nothing was counted".to_owned())
            };
            checks.check(format_args!("{node} counts Geneve, {direction}"), verdict);
        }
    }
}

/// A datapath that was asked for must be the one that is used.
pub(super) fn check_path(bed: &Bed, checks: &mut Checks) {
    let wanted = bed.config().datapath;
    if wanted == Datapath::Auto {
        return;
    }
    for node in bed.config().node_names() {
        let verdict = match node_path(bed, &node) {
            Ok(path) if path == wanted.as_str() => Ok(String::new()),
            Ok(path) => Err(format!("it is {path}")),
            Err(error) => Err(format!("{error:#}")),
        };
        checks.check(format_args!("{node} forwards by {}", wanted.as_str()), verdict);
    }
}
