//! What the node agents have counted, from their metrics.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::bed::config::Datapath;
use crate::exec;
use crate::ui::{Checks, say};

/// Packets of one tunnel in one direction, by node: (node, labels) to count.
pub(super) type Tunnels = BTreeMap<(String, String), f64>;

const PACKETS: &str = "slipstream_node_tunnel_packets_total";
const PATH: &str = "slipstream_node_datapath";

/// What the agent of `node` answers at `path`.
pub(crate) fn agent(bed: &Bed, node: &str, path: &str) -> Result<String> {
    let program = bed.config().program("testbed");
    let mut command = bed.host(node).network_command(Path::new(&program))?;
    exec::output(command.args(["probe", "get", "127.0.0.1", "9410", path, "--body"]))
        .with_context(|| format!("{path} of the agent on {node}"))
}

fn metrics(bed: &Bed, node: &str) -> Result<String> {
    agent(bed, node, "/metrics")
}

/// The tunnel counters of all nodes.
pub(super) fn tunnels(bed: &Bed) -> Result<Tunnels> {
    let mut tunnels = Tunnels::new();
    for node in bed.config().node_names() {
        for (labels, value) in samples(&metrics(bed, &node)?, PACKETS) {
            tunnels.insert((node.clone(), labels), value);
        }
    }
    Ok(tunnels)
}

/// `ebpf` or `ovs`, with the reason if the agent gives one.
pub(super) fn node_path(bed: &Bed, node: &str) -> Result<String> {
    let text = metrics(bed, node)?;
    let (labels, _) = samples(&text, PATH)
        .into_iter()
        .find(|(_, value)| *value > 0.0)
        .context("the agent says nothing about its path")?;
    label(&labels, "path").context("no path among the labels")
}

/// The samples of one metric: labels as they stand, and the value.
fn samples(text: &str, name: &str) -> Vec<(String, f64)> {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix('{')?;
            let (labels, value) = rest.rsplit_once('}')?;
            Some((labels.to_owned(), value.split_whitespace().next()?.parse().ok()?))
        })
        .collect()
}

fn label(labels: &str, name: &str) -> Option<String> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

/// Prints what was counted meanwhile. With eBPF on the path, each node must have sent and received.
pub(super) fn print(before: &Tunnels, after: &Tunnels, bed: &Bed, checks: &mut Checks) {
    say("Geneve packets seen by the node agents meanwhile:");
    let mut sums: BTreeMap<(String, String), f64> = BTreeMap::new();
    for ((node, labels), value) in after {
        let more = value - before.get(&(node.clone(), labels.clone())).copied().unwrap_or(0.0);
        let direction = label(labels, "direction").unwrap_or_default();
        *sums.entry((node.clone(), direction)).or_default() += more;
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
            let count = sums.get(&(node.clone(), direction.to_owned())).copied().unwrap_or(0.0);
            let verdict = if count > 0.0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_metric_are_read_with_their_labels() {
        let text = "# TYPE x counter\nx_total{a=\"1\",direction=\"out\"} 4\nx_total_other{a=\"2\"} 9\nx_total{a=\"b}c\"} 5 1700\n";
        assert_eq!(
            samples(text, "x_total"),
            [("a=\"1\",direction=\"out\"".into(), 4.0), ("a=\"b}c\"".into(), 5.0)]
        );
        assert_eq!(label("a=\"1\",direction=\"out\"", "direction").as_deref(), Some("out"));
    }
}
