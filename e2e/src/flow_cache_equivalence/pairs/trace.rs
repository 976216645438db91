//! The entries that carry a packet from where it is sent to where it arrives, by what `slipctl flows` says of each node.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::Result;
use api::admin::{Action, Flow, FlowSpec};

use super::super::frame::{Packet, Upper};
use super::super::scene::Scene;
use testbed::cluster::config::{Datapath, node_ip};

/// Where packets enter or leave OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::flow_cache_equivalence) enum Side {
    /// A pod.
    Pod,
    /// Another node.
    Tunnel,
    /// The uplink, without a tunnel.
    Outside,
    /// The node's management port.
    Management,
    /// The gateway bridge's own port.
    Bridge,
}

impl Side {
    /// That of a pod, or of an interface by its name.
    fn of(pod: Option<&String>, name: &str) -> Self {
        match (pod, name) {
            (Some(_), _) => Self::Pod,
            (None, "breth0") => Self::Bridge,
            (None, "ovn-k8s-mp0") => Self::Management,
            (None, _) => Self::Outside,
        }
    }
}

/// An entry on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::flow_cache_equivalence) struct Hop {
    /// Number of the node, from 0.
    pub(in crate::flow_cache_equivalence) node: usize,
    pub(in crate::flow_cache_equivalence) spec: FlowSpec,
    pub(in crate::flow_cache_equivalence) pair: (Side, Side),
    pub(in crate::flow_cache_equivalence) epoch: u32,
    pub(in crate::flow_cache_equivalence) packets: u64,
    /// Milliseconds until its refresh is due.
    pub(in crate::flow_cache_equivalence) refresh_in_ms: i64,
}

/// What the caches of the two nodes hold.
#[derive(Clone, Debug, Default)]
pub(in crate::flow_cache_equivalence) struct Entries(pub(in crate::flow_cache_equivalence) [Vec<Flow>; 2]);

impl Entries {
    /// Reads them; none where there are no caches.
    pub(in crate::flow_cache_equivalence) fn read(scene: &Scene<'_>) -> Result<Self> {
        if scene.bed.config().datapath == Datapath::Ovs {
            return Ok(Self::default());
        }
        let of = |node: usize| scene.agent(node)?.slipctl_json(&["flows", "--limit", "100000"]);
        Ok(Self([of(0)?, of(1)?]))
    }

    /// The valid entry of a flow on a node.
    pub(in crate::flow_cache_equivalence) fn valid(&self, node: usize, spec: &FlowSpec) -> Option<&Flow> {
        self.0.get(node)?.iter().find(|flow| flow.flow == *spec && flow.valid)
    }

    /// What a node has of a flow, in use or not.
    pub(in crate::flow_cache_equivalence) fn any(&self, node: usize, spec: &FlowSpec) -> Option<&Flow> {
        self.0.get(node)?.iter().find(|flow| flow.flow == *spec)
    }

    /// Whether a node has anything of a flow, in use or not.
    pub(in crate::flow_cache_equivalence) fn has(&self, node: usize, spec: &FlowSpec) -> bool {
        self.any(node, spec).is_some()
    }

    /// The entries that carry a packet which enters OVS on that node, up to where it leaves the last one; none if one is missing.
    pub(in crate::flow_cache_equivalence) fn trace(&self, node: usize, packet: &Packet) -> Option<Vec<Hop>> {
        let mut hops = Vec::new();
        let (mut node, mut spec) = (node, spec(packet)?);
        loop {
            let flow = self.valid(node, &spec)?;
            let next = match &flow.action {
                Action::Tunnel(end) => Some(usize::from(end.remote != node_ip(1))),
                Action::Local { .. } | Action::Deliver(_) => None,
            };
            let (pair, epoch, packets) = (pair(flow), flow.epoch, flow.packets);
            hops.push(Hop { node, spec, pair, epoch, packets, refresh_in_ms: flow.refresh_in_ms });
            let Some(next) = next else { return Some(hops) };
            if hops.len() > self.0.len() {
                return None;
            }
            if let Some(after) = flow.translated {
                (spec.source, spec.destination) = (after.source, after.destination);
            }
            node = next;
        }
    }
}

/// The flow of a packet.
pub(in crate::flow_cache_equivalence) fn spec(packet: &Packet) -> Option<FlowSpec> {
    let protocol = match packet.upper {
        Upper::Udp => api::admin::CachedProtocol::Udp,
        Upper::Tcp { .. } => api::admin::CachedProtocol::Tcp,
        _ => return None,
    };
    Some(FlowSpec {
        protocol,
        source: SocketAddr::new(packet.source, packet.ports[0]),
        destination: SocketAddr::new(packet.destination, packet.ports[1]),
    })
}

/// From where to where an entry carries.
fn pair(flow: &Flow) -> (Side, Side) {
    match &flow.action {
        Action::Tunnel(_) => (Side::of(flow.pod.as_ref(), &flow.endpoint), Side::Tunnel),
        Action::Deliver(_) => (Side::Tunnel, Side::of(flow.pod.as_ref(), &flow.endpoint)),
        Action::Local { to, pod } => {
            (Side::of(flow.pod.as_ref(), &flow.endpoint), Side::of(pod.as_ref(), to))
        }
    }
}

/// Why these and later hops do not show that each carried `count` packets in between.
pub(in crate::flow_cache_equivalence) fn unproven(
    before: &[Hop],
    later: &Entries,
    count: u64,
) -> Option<String> {
    before.iter().find_map(|hop| {
        let after = later.valid(hop.node, &hop.spec).filter(|flow| flow.epoch == hop.epoch);
        let carried = after.and_then(|flow| flow.packets.checked_sub(hop.packets));
        let (from, to) = hop.pair;
        (carried != Some(count)).then(|| {
            format!("the entry {from:?} -> {to:?} of n{} carried {carried:?}, not {count}", hop.node + 1)
        })
    })
}

/// All pairs of some ways' hops.
pub(in crate::flow_cache_equivalence) fn pairs<'a>(
    hops: impl Iterator<Item = &'a Hop>,
) -> BTreeSet<(Side, Side)> {
    hops.map(|hop| hop.pair).collect()
}

#[cfg(test)]
mod tests {
    use api::admin::{CachedProtocol, Translated, TunnelEnd};

    use super::*;

    fn entry(spec: FlowSpec, action: Action, pod: Option<&str>, endpoint: &str, packets: u64) -> Flow {
        Flow {
            endpoint: endpoint.to_owned(),
            pod: pod.map(str::to_owned),
            flow: spec,
            translated: None,
            service: None,
            action,
            ttl_step: 1,
            epoch: 3,
            valid: true,
            waiting: false,
            diverged: false,
            slow: false,
            sensitive: false,
            probing: false,
            age_ms: 1,
            refresh_in_ms: 1,
            packets,
            bytes: 0,
        }
    }

    fn tunnel(remote: u8) -> TunnelEnd {
        TunnelEnd { remote: node_ip(remote).into(), node: None, vni: 1, option: 2 }
    }

    /// A pod on the first node asks a service whose backend is on the second.
    fn way() -> (Packet, Entries) {
        let packet = Packet::new(
            [[2; 6], [4; 6]],
            "10.244.0.3".parse().unwrap(),
            "10.96.0.7".parse().unwrap(),
            [21_000, 7300],
            Upper::Udp,
        );
        let first = spec(&packet).unwrap();
        let after = Translated { source: first.source, destination: "10.244.1.3:7100".parse().unwrap() };
        let second =
            FlowSpec { protocol: CachedProtocol::Udp, source: after.source, destination: after.destination };
        let out = Flow {
            translated: Some(after),
            ..entry(first, Action::Tunnel(tunnel(2)), Some("exact/a"), "c0ffee", 5)
        };
        let into = entry(second, Action::Deliver(tunnel(1)), Some("exact/b"), "c0ffee", 7);
        (packet, Entries([vec![out], vec![into]]))
    }

    #[test]
    fn a_packet_is_followed_through_translation_and_tunnel() {
        let (packet, entries) = way();
        let hops = entries.trace(0, &packet).unwrap();
        assert_eq!(pairs(hops.iter()), [(Side::Pod, Side::Tunnel), (Side::Tunnel, Side::Pod)].into());
        assert_eq!(hops.iter().map(|hop| (hop.node, hop.packets)).collect::<Vec<_>>(), [(0, 5), (1, 7)]);
        let mut without = entries.clone();
        without.0[1][0].valid = false;
        assert!(without.trace(0, &packet).is_none());
        assert!(without.has(1, &hops[1].spec) && without.valid(1, &hops[1].spec).is_none());
    }

    #[test]
    fn what_an_entry_carried_counts_within_one_epoch_alone() {
        let (packet, mut entries) = way();
        let hops = entries.trace(0, &packet).unwrap();
        assert!(unproven(&hops, &entries, 0).is_none());
        entries.0[0][0].packets += 2;
        assert!(unproven(&hops, &entries, 2).unwrap().contains("Tunnel -> Pod"));
        entries.0[1][0].packets += 2;
        assert!(unproven(&hops, &entries, 2).is_none());
        entries.0[0][0].epoch += 1;
        assert!(unproven(&hops, &entries, 2).unwrap().contains("Pod -> Tunnel"));
    }

    #[test]
    fn sides_are_told_by_pods_and_names() {
        let (packet, _) = way();
        let spec = spec(&packet).unwrap();
        let side = |endpoint: &str, to: &str| {
            pair(&entry(spec, Action::Local { to: to.to_owned(), pod: None }, None, endpoint, 0))
        };
        assert_eq!(side("breth0", "eth0"), (Side::Bridge, Side::Outside));
        assert_eq!(side("ovn-k8s-mp0", "breth0"), (Side::Management, Side::Bridge));
    }
}
