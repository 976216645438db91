//! Which of a service's endpoints a node uses: topology hints (`trafficDistribution`, `topology-mode`), local traffic
//! policies, and endpoints that serve while they terminate where none is ready. The rules are kube-proxy's.

use std::net::IpAddr;

use api::addr::Family;
use api::service::{self, Condition, Endpoint};

use crate::index::Node;

/// The clients for which endpoints are chosen.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scope<'a> {
    /// All nodes; hints do not apply.
    Everywhere,
    /// One node, with endpoints of the whole cluster.
    Cluster(&'a Node),
    /// One node, with the endpoints on it.
    Local(&'a Node),
}

/// What hints request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preference<'a> {
    Nothing,
    SameNode(&'a str),
    SameZone(&'a str),
}

/// True when hints may make the choice differ from node to node: of one family, every ready endpoint has a hint for nodes, or
/// every one has a hint for zones. One endpoint without a hint makes all hints void.
pub(super) fn depends_on_node(endpoints: &[&Endpoint]) -> bool {
    [true, false].into_iter().any(|v4| {
        let mut ready = endpoints
            .iter()
            .filter(|endpoint| endpoint.address.is_ipv4() == v4 && endpoint.condition == Condition::Ready)
            .peekable();
        ready.peek().is_some()
            && (ready.clone().all(|endpoint| !endpoint.hints.nodes.is_empty())
                || ready.all(|endpoint| !endpoint.hints.zones.is_empty()))
    })
}

/// The endpoints of the VIP's family that are used: the ready ones that hints leave; if there are none, those that still
/// serve while they terminate.
pub(super) fn choose<'e>(endpoints: &[&'e Endpoint], vip: IpAddr, scope: Scope<'_>) -> Vec<&'e Endpoint> {
    let here = |endpoint: &Endpoint| match scope {
        Scope::Local(node) => endpoint.node.as_ref() == Some(&node.name),
        Scope::Everywhere | Scope::Cluster(_) => true,
    };
    let among = endpoints.iter().copied().filter(|endpoint| here(endpoint));
    let mut chosen = service::usable(among, Family::of(vip));
    // Hints apply to endpoints that are ready.
    if let Scope::Cluster(node) = scope
        && chosen.iter().all(|endpoint| endpoint.condition == Condition::Ready)
    {
        match preference(&chosen, node) {
            Preference::Nothing => {}
            Preference::SameNode(name) => chosen.retain(|endpoint| endpoint.hints.nodes.contains(name)),
            Preference::SameZone(zone) => chosen.retain(|endpoint| endpoint.hints.zones.contains(zone)),
        }
    }
    chosen
}

/// A hint counts only when every ready endpoint has one of its kind and at least one is for this node or its zone.
fn preference<'n>(ready: &[&Endpoint], node: &'n Node) -> Preference<'n> {
    let all_for_nodes = ready.iter().all(|endpoint| !endpoint.hints.nodes.is_empty());
    if all_for_nodes && ready.iter().any(|endpoint| endpoint.hints.nodes.contains(&node.name)) {
        return Preference::SameNode(&node.name);
    }
    let all_for_zones = ready.iter().all(|endpoint| !endpoint.hints.zones.is_empty());
    match node.zone() {
        Some(zone) if all_for_zones && ready.iter().any(|e| e.hints.zones.contains(zone)) => {
            Preference::SameZone(zone)
        }
        _ => Preference::Nothing,
    }
}
