//! The goals, and which figures are held against them.

use serde::{Deserialize, Serialize};

use super::alone::Alone;
use super::icount::Machines;
use super::load::Kind::{Crr, TcpRr, TcpStream, UdpPps, UdpRr};
use super::plan::{Load, Path};
use super::revoke::Late;
use super::row::Row;
use super::samples::Samples;
use traffic::statistics::Goal;
use traffic::statistics::median;

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) samples: Samples,
    pub(super) revoked: Vec<Late>,
    pub(super) revoked_ovs: Vec<Late>,
    pub(super) orphaned: Vec<Late>,
    pub(super) alone: Alone,
    #[serde(default)]
    pub(super) machines: Machines,
}

/// All rows, measured or not, in the order of the goals.
pub(super) fn rows(found: &Found) -> Vec<Row> {
    let mut rows = ratios(&found.samples);
    rows.extend(ways(&found.samples));
    rows.extend(found.machines.rows());
    rows.extend(alone(&found.alone));
    rows.extend(revoked(found));
    rows.extend(counters(&found.samples));
    rows.push(
        ratio(&found.samples, "new connections across nodes", Load::One(Crr), Path::Fast, Path::Ovs, 1.0)
            .note("userspace datapath"),
    );
    rows.extend(found.machines.connections());
    rows
}

/// One path against another under a load.
pub(super) fn ratio(samples: &Samples, what: &str, load: Load, path: Path, against: Path, goal: f64) -> Row {
    let row = Row::new(what, against.label(), Goal::AtLeast(goal), "");
    row.pairs(&samples.pairs(load, path, against))
}

fn ratios(samples: &Samples) -> Vec<Row> {
    let row = |what, kind, path, against, goal| ratio(samples, what, Load::One(kind), path, against, goal);
    let (tcp, udp) = ("TCP_RR across nodes", "UDP_RR across nodes");
    vec![
        row(tcp, TcpRr, Path::Fast, Path::Direct, 0.95),
        row(udp, UdpRr, Path::Fast, Path::Direct, 0.95),
        row(tcp, TcpRr, Path::Fast, Path::Host, 0.88),
        row(udp, UdpRr, Path::Fast, Path::Host, 0.85),
        row(tcp, TcpRr, Path::Fast, Path::Routed, 1.05),
        row(udp, UdpRr, Path::Fast, Path::Routed, 1.05),
        row(tcp, TcpRr, Path::Fast, Path::Vxlan, 1.45),
        row(udp, UdpRr, Path::Fast, Path::Vxlan, 1.45),
        row("UDP 18 B packets/s across nodes", UdpPps, Path::Fast, Path::Vxlan, 1.5),
        row("TCP stream across nodes", TcpStream, Path::Fast, Path::Host, 0.97),
        row("TCP_RR same node", TcpRr, Path::FastSame, Path::Veth, 0.95),
        row("UDP_RR same node", UdpRr, Path::FastSame, Path::Veth, 0.95),
    ]
}

/// Connections that are translated, and those of nodes and of the outside.
fn ways(samples: &Samples) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, kind) in [("TCP_RR", TcpRr), ("UDP_RR", UdpRr)] {
        for (what, path, against, goal) in [
            ("cluster IP across nodes", Path::ClusterIp, Path::Fast, 0.97),
            ("from outside by node port, backend there", Path::NodePort, Path::DirectIn, 0.90),
            (
                "from outside by node port, backend on the other node",
                Path::NodePortFar,
                Path::DirectVia,
                0.85,
            ),
            ("pod to outside", Path::Outside, Path::RoutedSnat, 1.0),
            ("node to pod of the other node", Path::HostPod, Path::RoutedHost, 0.95),
            ("node to node", Path::Nodes, Path::Host, 0.92),
        ] {
            rows.push(ratio(samples, &format!("{name} {what}"), Load::Ways(kind), path, against, goal));
        }
    }
    let row = |what, kind, path, against, goal| ratio(samples, what, Load::Ways(kind), path, against, goal);
    rows.push(row("UDP 18 B packets/s to a cluster IP", UdpPps, Path::ClusterIp, Path::Fast, 0.97));
    rows.push(row("TCP stream, pod to outside", TcpStream, Path::Outside, Path::RoutedSnat, 1.0));
    rows
}

fn alone(alone: &Alone) -> Vec<Row> {
    let row = |what: &str, goal, values: &[f64]| {
        Row::new(format!("program alone, {what}"), "", Goal::AtMost(goal), "ns").median_of(values.to_vec())
    };
    vec![
        row("hit TX", 110.0, &alone.hit_tx),
        row("hit RX", 110.0, &alone.hit_rx),
        row("miss", 60.0, &alone.miss),
    ]
}

/// Streams that were not cached say nothing about the cache: their rows count as not measured.
fn revoked(found: &Found) -> Vec<Row> {
    let packets = |late: &[Late]| -> Vec<f64> {
        late.iter().map(|l| u32::try_from(l.packets).map_or(f64::MAX, f64::from)).collect()
    };
    let cached = |late: &[Late]| -> Vec<Late> { late.iter().copied().filter(|l| l.cached).collect() };
    let most = |values: &[f64]| values.iter().copied().reduce(f64::max);
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.0}"));
    let (fast, mut ovs) = (packets(&cached(&found.revoked)), packets(&found.revoked_ovs));
    let of_cached = format!("{} of {} streams were cached", fast.len(), found.revoked.len());
    let note = format!("{of_cached}; OVS alone: {} / {}", shown(median(&mut ovs)), shown(most(&ovs)));
    let what = "policy revoked under 5,000 packets/s, late packets";
    let orphaned = cached(&found.orphaned);
    let last = most(&orphaned.iter().map(|l| l.last_ms).collect::<Vec<_>>());
    let last = last.map_or(String::new(), |ms| format!(", last packet {ms:+.0} ms from then"));
    vec![
        Row::new(format!("{what}, median"), "", Goal::AtMost(5.0), "").median_of(fast.clone()).note(note),
        Row::new(format!("{what}, most"), "", Goal::AtMost(40.0), "").figure(most(&fast)),
        Row::new("user space killed, then flows changed, packets after 2.4 s", "", Goal::AtMost(0.0), "")
            .figure(most(&packets(&orphaned)))
            .note(format!("{} of {} streams were cached{last}", orphaned.len(), found.orphaned.len())),
    ]
}

fn counters(samples: &Samples) -> Vec<Row> {
    let row = |what, load, goal| ratio(samples, what, load, Path::Fast, Path::Uncounted, goal);
    vec![
        row("TCP_RR with counters and audit", Load::One(TcpRr), 0.98),
        row("UDP_RR with counters and audit", Load::One(UdpRr), 0.98),
        row("new connections, every CPU busy, with counters and audit", Load::All(Crr), 0.95),
    ]
}

#[cfg(test)]
mod tests {
    use traffic::statistics::Verdict;

    use super::*;

    #[test]
    fn what_was_not_measured_says_so() {
        let rows = rows(&Found::default());
        assert!(rows.len() > 25, "{}", rows.len());
        assert!(rows.iter().all(|row| row.verdict == Verdict::NotMeasured));
    }

    #[test]
    fn a_stream_that_was_not_cached_is_no_measurement_of_the_cache() {
        let late = |cached| Late { packets: 3, last_ms: 1.0, before: 3000, cached };
        let figures = |cached| {
            let found =
                Found { revoked: vec![late(cached)], orphaned: vec![late(cached)], ..Found::default() };
            revoked(&found).iter().map(|row| row.figure).collect::<Vec<_>>()
        };
        assert_eq!(figures(true), [Some(3.0); 3]);
        assert_eq!(figures(false), [None; 3]);
    }
}
