use std::collections::BTreeMap;

use super::super::cell::{Kind, cells};
use super::super::world::backend_ports;
use super::super::world::tests::world;
use super::*;

const PLAIN: Kind =
    Kind { backends: Backends::Pod, external_local: false, internal_local: false, affinity: false };
const OF_HOST: Kind = Kind { backends: Backends::Host, ..PLAIN };
const OF_PODS: Kind = Kind { backends: Backends::Pods, ..PLAIN };

fn external(kind: Kind) -> Kind {
    Kind { external_local: true, ..kind }
}

fn internal(kind: Kind) -> Kind {
    Kind { internal_local: true, ..kind }
}

/// `NAME CLIENT`, each once, of an IPv4 cell; the endpoints' second port left out.
fn answers(client: Client, target: Target, kind: Kind) -> Vec<String> {
    answers_in(&world(), client, target, kind)
}

fn answers_in(world: &World, client: Client, target: Target, kind: Kind) -> Vec<String> {
    let cell = Cell { client, target, kind, udp: false, six: false };
    let ways = ways(&cell, world);
    let first = ways.iter().filter(|way| way.endpoint.port == backend_ports(&kind)[0]);
    let server = |way: &Way| way.endpoint.name().split_once(':').unwrap().0.to_owned();
    first.map(|way| format!("{} {}", server(way), way.seen)).collect()
}

/// `NODE FROM>TO`, and whether it is sent back, of the way of a UDP cell to the first endpoint.
fn legs(client: Client, target: Target, kind: Kind) -> Vec<String> {
    legs_in(&world(), client, target, kind)
}

fn legs_in(world: &World, client: Client, target: Target, kind: Kind) -> Vec<String> {
    let cell = Cell { client, target, kind, udp: true, six: false };
    let ways = ways(&cell, world);
    let shown = |leg: &Leg| {
        let back = if leg.back { " back" } else { "" };
        format!("{} {:?}>{:?}{back}", leg.node.name(), leg.from, leg.to)
    };
    ways[0].legs.iter().map(shown).collect()
}

#[test]
fn pods_are_seen_as_themselves_and_a_backend_that_asks_itself_is_not() {
    let cluster = Target::ClusterIp;
    assert_eq!(answers(Client::NearPod, cluster, PLAIN), ["pod-n1 10.244.0.4"]);
    assert_eq!(answers(Client::FarPod, cluster, PLAIN), ["pod-n1 10.244.1.4"]);
    assert_eq!(answers(Client::Itself, cluster, OF_PODS), ["pod-n1 169.254.169.5", "pod-n2 10.244.0.3"]);
    assert_eq!(answers(Client::Itself, Target::HostPort, PLAIN), ["pod-n1 169.254.169.5"]);
    assert_eq!(answers(Client::NearPod, cluster, OF_HOST), ["host-n1 10.244.0.4"]);
    // Out of its node a pod has the node's address.
    assert_eq!(answers(Client::FarPod, cluster, OF_HOST), ["host-n1 172.18.0.3"]);
}

#[test]
fn a_gateway_router_hides_who_comes_by_it_unless_the_policy_is_local() {
    let (own, other) = (Target::NodePort(Node::N1), Target::NodePort(Node::N2));
    assert_eq!(answers(Client::Outside, own, PLAIN), ["pod-n1 100.64.0.2"]);
    assert_eq!(answers(Client::Outside, other, PLAIN), ["pod-n1 100.64.0.3"]);
    assert_eq!(answers(Client::Outside, own, external(PLAIN)), ["pod-n1 172.18.0.1"]);
    assert!(answers(Client::Outside, other, external(PLAIN)).is_empty(), "refused");
    assert_eq!(answers(Client::Outside, other, external(OF_PODS)), ["pod-n2 172.18.0.1"]);
    assert_eq!(answers(Client::Outside, own, OF_HOST), ["host-n1 169.254.169.1"]);
    assert_eq!(answers(Client::Outside, other, OF_HOST), ["host-n1 172.18.0.3"]);
    assert_eq!(answers(Client::Outside, own, external(OF_HOST)), ["host-n1 172.18.0.1"]);
    assert_eq!(answers(Client::Outside, Target::HostPort, PLAIN), ["pod-n1 172.18.0.1"]);
    assert_eq!(answers(Client::FarPod, own, external(PLAIN)), ["pod-n1 172.18.0.3"]);
    assert_eq!(answers(Client::FarPod, Target::HostPort, PLAIN), ["pod-n1 172.18.0.3"]);
}

#[test]
fn inside_the_external_policy_leaves_nobody_out() {
    for target in [
        Target::NodePort(Node::N1),
        Target::ExternalIp(Node::N1),
        Target::LoadBalancer(Node::N1),
        Target::ClusterIp,
    ] {
        assert_eq!(answers(Client::NearPod, target, external(OF_PODS)).len(), 2, "{target}");
        assert_eq!(answers(Client::NearHost, target, external(OF_PODS)).len(), 2, "{target}");
    }
    assert_eq!(
        answers(Client::FarHost, Target::ExternalIp(Node::N1), external(PLAIN)),
        ["pod-n1 100.64.0.3"]
    );
    // A node whose own node port has no endpoint there uses that of a node that has.
    assert_eq!(answers(Client::FarHost, Target::NodePort(Node::N2), external(PLAIN)), ["pod-n1 172.18.0.3"]);
}

#[test]
fn the_internal_policy_is_of_cluster_addresses_alone() {
    let kind = internal(OF_PODS);
    assert_eq!(answers(Client::FarPod, Target::ClusterIp, kind), ["pod-n2 10.244.1.4"]);
    assert_eq!(answers(Client::FarHost, Target::ClusterIp, kind), ["pod-n2 10.244.1.2"]);
    assert!(answers(Client::FarPod, Target::ClusterIp, internal(PLAIN)).is_empty());
    assert!(answers(Client::FarHost, Target::ClusterIp, internal(OF_HOST)).is_empty());
    assert_eq!(answers(Client::NearHost, Target::ClusterIp, internal(OF_HOST)), ["host-n1 169.254.169.2"]);
    for target in [Target::NodePort(Node::N2), Target::ExternalIp(Node::N1)] {
        assert_eq!(answers(Client::FarPod, target, kind).len(), 2, "{target}");
        assert_eq!(answers(Client::FarHost, target, kind).len(), 2, "{target}");
    }
}

#[test]
fn the_nodes_own_connections() {
    assert_eq!(answers(Client::NearHost, Target::ClusterIp, OF_HOST), ["host-n1 169.254.169.1"]);
    assert_eq!(answers(Client::FarHost, Target::ClusterIp, OF_HOST), ["host-n1 172.18.0.3"]);
    assert_eq!(answers(Client::NearHost, Target::HostPort, PLAIN), ["pod-n1 10.244.0.2"]);
    assert_eq!(answers(Client::FarHost, Target::HostPort, PLAIN), ["pod-n1 172.18.0.3"]);
    assert_eq!(answers(Client::NearHost, Target::NodePort(Node::N2), OF_HOST), ["host-n1 172.18.0.3"]);
}

#[test]
fn every_node_on_the_way_has_a_leg() {
    assert_eq!(legs(Client::NearPod, Target::ClusterIp, PLAIN), ["n1 Pod>Pod"]);
    assert_eq!(legs(Client::FarPod, Target::ClusterIp, PLAIN), ["n2 Pod>Tunnel", "n1 Tunnel>Pod"]);
    assert_eq!(legs(Client::Itself, Target::ClusterIp, PLAIN), ["n1 Pod>Pod back"]);
    assert_eq!(legs(Client::NearPod, Target::ClusterIp, OF_HOST), ["n1 Pod>Management"]);
    assert_eq!(legs(Client::FarPod, Target::ClusterIp, OF_HOST), ["n2 Pod>Outside", "n1 Outside>Bridge"]);
    let other = Target::NodePort(Node::N2);
    assert_eq!(legs(Client::NearPod, other, PLAIN), ["n1 Pod>Outside", "n2 Outside>Tunnel", "n1 Tunnel>Pod"]);
    assert_eq!(
        legs(Client::NearHost, other, OF_HOST),
        ["n1 Bridge>Outside", "n2 Outside>Outside back", "n1 Outside>Bridge"]
    );
    let local = external(PLAIN);
    assert_eq!(legs(Client::FarHost, other, local), ["n2 Bridge>Outside", "n1 Outside>Pod"]);
    assert_eq!(legs(Client::Outside, Target::HostPort, PLAIN), ["n1 Outside>Pod"]);
    assert_eq!(legs(Client::NearHost, Target::HostPort, PLAIN), ["n1 Management>Pod"]);
    assert_eq!(legs(Client::NearHost, Target::ClusterIp, PLAIN), ["n1 Bridge>Pod"]);
    assert_eq!(legs(Client::NearHost, Target::ClusterIp, OF_HOST), ["n1 Bridge>Bridge back"]);
    assert_eq!(legs(Client::NearHost, Target::ClusterIp, internal(OF_HOST)), [""; 0]);
    assert_eq!(legs(Client::NearHost, Target::ClusterIp, internal(PLAIN)), ["n1 Management>Pod"]);
}

#[test]
fn legs_follow_each_other_from_the_client_to_who_sees_it() {
    for cell in cells().0 {
        for way in ways(&cell, &world()) {
            for pair in way.legs.windows(2) {
                assert_eq!(pair[0].after, pair[1].before, "{cell}");
                assert_ne!(pair[0].node, pair[1].node, "{cell}");
            }
            if let Some(last) = way.legs.last() {
                assert_eq!(last.after.source, way.seen, "{cell}");
                assert_eq!(last.node, way.endpoint.node, "{cell}");
            }
        }
    }
}

#[test]
fn most_cells_are_fast_and_few_are_refused() {
    let (mut refused, mut counts) = (0, BTreeMap::new());
    for cell in cells().0 {
        let ways = ways(&cell, &world());
        refused += usize::from(ways.is_empty());
        for way in ways {
            let back = way.legs.iter().any(|leg| leg.back);
            *counts.entry(back).or_insert(0) += 1;
        }
    }
    // Backends on n1 alone, half of the policies, 16 cells each. External: n2's node port for the outside, n1's pods, the backend, n1
    // itself; n2's other addresses. Internal: n2's pods and n2 itself.
    assert_eq!(refused, (2 + 2 + 1 + 2 + 4) * 16 + 4 * 16);
    // Ways, of which a cell has one for each endpoint. Sent back: hairpin by four addresses (256, and as many where another pod is behind
    // the service too) and by the host port (4), n1 to itself (224), and a gateway router that sends on to n1 (160).
    let back = 2 * 256 + 4 + 224 + 160;
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(false, 4356 + 1392), (true, back)]);
}

#[test]
fn in_mode_local_the_nodes_stack_is_between_uplink_and_ovn_and_clients_are_seen_as_in_the_other() {
    let local = World { local_gateway: true, ..world() };
    let targets = [Target::NodePort(Node::N1), Target::NodePort(Node::N2), Target::HostPort];
    for target in targets {
        for kind in [PLAIN, OF_HOST, OF_PODS, external(PLAIN), external(OF_HOST), external(OF_PODS)] {
            if target == Target::HostPort && kind != PLAIN {
                continue;
            }
            for client in [Client::Outside, Client::NearPod, Client::FarPod, Client::NearHost] {
                let shared = answers(client, target, kind);
                assert_eq!(answers_in(&local, client, target, kind), shared, "{client:?} {target} {kind:?}");
            }
        }
    }
    let own = Target::NodePort(Node::N1);
    let outside = |kind| legs_in(&local, Client::Outside, own, kind);
    assert_eq!(outside(PLAIN), ["n1 Outside>Bridge", "n1 Bridge>Pod"]);
    assert_eq!(outside(external(PLAIN)), ["n1 Outside>Bridge", "n1 Management>Pod"]);
    assert_eq!(outside(external(OF_HOST)), ["n1 Outside>Bridge"]);
    assert_eq!(
        legs_in(&local, Client::FarPod, own, PLAIN),
        ["n2 Pod>Management", "n2 Bridge>Outside", "n1 Outside>Bridge", "n1 Bridge>Pod"]
    );
    assert_eq!(
        legs_in(&local, Client::Outside, Target::NodePort(Node::N2), OF_HOST),
        ["n2 Outside>Bridge", "n2 Bridge>Outside", "n1 Outside>Bridge"]
    );
}
