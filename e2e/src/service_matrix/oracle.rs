//! What must become of a cell: who may answer, whom the answerer sees, and the way through each node's OVS. Written from what Kubernetes
//! defines and ovn-kubernetes does (`docs/services.md`); it knows nothing of flows and load balancers of this product. Pure.
//!
//! A client meets a service at one of three places. Pods meet it at their own node's switch, which changes the destination alone. A
//! node's own processes, and whoever comes from outside, meet it at that node's gateway router, which puts itself in the client's place
//! unless the policy is Local. A node's own processes reach pods of their node, and services with an internal policy Local, by the management port.

use std::net::{IpAddr, SocketAddr};

use super::cell::{Backends, Cell, Client, Node, Target};
use super::world::{BEHIND_HOST_PORT, World, backend_ports, masquerade};

/// Where packets enter and leave OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Pod,
    /// To and from another node's OVS.
    Tunnel,
    /// The uplink without a tunnel.
    Outside,
    /// The node, by the gateway bridge.
    Bridge,
    /// The node, by the management port.
    Management,
}

/// Addresses of a packet, and the destination's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) source: IpAddr,
    pub(super) destination: SocketAddr,
}

/// The part of a way that one node's OVS forwards, from the client to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) node: Node,
    pub(super) from: Side,
    pub(super) to: Side,
    pub(super) before: Ends,
    pub(super) after: Ends,
    /// It leaves by the port that it came in by: hairpin, and a gateway router that sends on to another host. The flow cache never
    /// carries it.
    pub(super) back: bool,
}

/// An endpoint of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) node: Node,
    /// In the node's own network.
    pub(super) host: bool,
    pub(super) port: u16,
}

/// One that may answer, and how the client comes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) endpoint: Endpoint,
    /// The client, as the endpoint sees it.
    pub(super) seen: IpAddr,
    /// None where a node's process reaches another of its node without OVS.
    pub(super) legs: Vec<Leg>,
}

/// The ways of a cell; without any the connection is refused.
pub(super) fn ways(cell: &Cell, world: &World) -> Vec<Way> {
    let meeting = meeting(cell, world);
    let endpoints = endpoints(cell).into_iter();
    let served = endpoints.filter(|endpoint| meeting.only_on.is_none_or(|node| endpoint.node == node));
    served.map(|endpoint| meeting.way_to(endpoint, cell, world)).collect()
}

impl Endpoint {
    /// What it calls itself.
    pub(super) fn name(&self) -> String {
        let kind = if self.host { "host" } else { "pod" };
        format!("{kind}-{}:{}", self.node.name(), self.port)
    }

    fn address(&self, world: &World, six: bool) -> SocketAddr {
        let ip = match (self.host, self.node) {
            (true, node) => node.address(six),
            (false, Node::N1) => world.backends[0].of(six),
            (false, Node::N2) => world.backends[1].of(six),
        };
        (ip, self.port).into()
    }
}

/// Where a client meets the service.
enum Place {
    /// At the switch of the client's node; its packets come in there.
    Switch(Side),
    /// At the gateway router, coming from that side.
    Gateway(Side),
    /// Nowhere in OVS: the node has translated already.
    Node(Option<Side>),
}

struct Meeting {
    node: Node,
    place: Place,
    /// The legs until then.
    before: Vec<Leg>,
    ends: Ends,
    /// Endpoints of that node alone.
    only_on: Option<Node>,
    /// The gateway router leaves the client as it is.
    keeps_client: bool,
}

/// Every endpoint of a cell's service, or of its host port.
fn endpoints(cell: &Cell) -> Vec<Endpoint> {
    let (nodes, host): (&[Node], bool) = match cell.kind.backends {
        Backends::Pod => (&[Node::N1], false),
        Backends::Pods => (&[Node::N1, Node::N2], false),
        Backends::Host => (&[Node::N1], true),
    };
    let behind = backend_ports(&cell.kind);
    let ports = if cell.target == Target::HostPort { &[BEHIND_HOST_PORT][..] } else { &behind };
    nodes.iter().flat_map(|&node| ports.iter().map(move |&port| Endpoint { node, host, port })).collect()
}

fn meeting(cell: &Cell, world: &World) -> Meeting {
    let Cell { client, target, kind, six, .. } = *cell;
    let ends = Ends { source: world.client(cell), destination: world.destination(cell) };
    let meeting =
        |node, place| Meeting { node, place, before: Vec::new(), ends, only_on: None, keeps_client: false };
    // Whoever comes from outside, be it another node or one of its pods.
    let arriving = |node, before| {
        let local = kind.external_local && target != Target::HostPort;
        Meeting {
            before,
            only_on: local.then_some(node),
            keeps_client: kind.external_local || target == Target::HostPort,
            ..meeting(node, Place::Gateway(Side::Outside))
        }
    };
    let addressed = match target {
        Target::NodePort(node) => Some(node),
        Target::HostPort => Some(Node::N1),
        Target::ExternalIp(node) | Target::LoadBalancer(node) if client == Client::Outside => Some(node),
        _ => None,
    };
    let Some(own) = client.node() else { return arriving(addressed.unwrap_or(Node::N1), Vec::new()) };
    let is_host = matches!(client, Client::NearHost | Client::FarHost);
    if let Some(node) = addressed.filter(|node| *node != own) {
        // To another node: pods in the name of their own.
        let (from, source) =
            if is_host { (Side::Bridge, ends.source) } else { (Side::Pod, own.address(six)) };
        let after = Ends { source, ..ends };
        let leg = Leg { node: own, from, to: Side::Outside, before: ends, after, back: false };
        return Meeting { ends: after, ..arriving(node, vec![leg]) };
    }
    let internal = (target == Target::ClusterIp && kind.internal_local).then_some(own);
    if !is_host {
        return Meeting { only_on: internal, ..meeting(own, Place::Switch(Side::Pod)) };
    }
    // From here on the client is the node itself.
    let management = Ends { source: world.management(own, six), ..ends };
    if target == Target::HostPort {
        return Meeting { ends: management, ..meeting(own, Place::Node(Some(Side::Management))) };
    }
    if internal.is_some() {
        let here = endpoints(cell).iter().any(|endpoint| endpoint.host && endpoint.node == own);
        let (place, ends) = if here {
            // Its route to services has this source.
            (Place::Node(None), Ends { source: masquerade(2, six), ..ends })
        } else {
            (Place::Switch(Side::Management), management)
        };
        return Meeting { ends, only_on: internal, ..meeting(own, place) };
    }
    let here = endpoints(cell).iter().any(|endpoint| endpoint.node == own);
    if kind.external_local && !here && matches!(target, Target::NodePort(_)) {
        // Its own node port is served by a node that has endpoints.
        let node = own.other();
        let ends = Ends { destination: (node.address(six), ends.destination.port()).into(), ..ends };
        let leg = unchanged(own, Side::Bridge, Side::Outside, ends);
        return Meeting { ends, ..arriving(node, vec![leg]) };
    }
    // The node translates its own and external addresses to the cluster address; cluster addresses have a route with a source.
    let source = if target == Target::ClusterIp { masquerade(2, six) } else { ends.source };
    let ends = Ends { source, destination: world.cluster(cell) };
    Meeting { ends, ..meeting(own, Place::Gateway(Side::Bridge)) }
}

fn unchanged(node: Node, from: Side, to: Side, ends: Ends) -> Leg {
    Leg { node, from, to, before: ends, after: ends, back: false }
}

impl Meeting {
    fn way_to(&self, endpoint: Endpoint, cell: &Cell, world: &World) -> Way {
        let six = cell.six;
        let address = endpoint.address(world, six);
        let here = endpoint.node == self.node;
        let is_itself = cell.client == Client::Itself && endpoint.node == Node::N1 && !endpoint.host;
        let mut legs = self.before.clone();
        // The source after the service has been met, and the destination where packets leave the node.
        let (from, to, source, destination) = match self.place {
            Place::Node(from) => {
                let Some(from) = from else {
                    return Way { endpoint, seen: self.ends.source, legs };
                };
                let ends = Ends { destination: address, ..self.ends };
                legs.push(unchanged(self.node, from, Side::Pod, ends));
                return Way { endpoint, seen: ends.source, legs };
            }
            Place::Switch(from) => match (endpoint.host, here) {
                (false, true) if is_itself => (from, Side::Pod, masquerade(5, six), address),
                (false, true) => (from, Side::Pod, self.ends.source, address),
                (false, false) => (from, Side::Tunnel, self.ends.source, address),
                (true, true) => (from, Side::Management, self.ends.source, address),
                (true, false) => (from, Side::Outside, self.node.address(six), address),
            },
            Place::Gateway(from) => {
                let kept = |hidden: IpAddr| if self.keeps_client { self.ends.source } else { hidden };
                match (endpoint.host, here) {
                    (false, true) => (from, Side::Pod, kept(self.node.join(six)), address),
                    (false, false) => (from, Side::Tunnel, kept(self.node.join(six)), address),
                    (true, true) => (from, Side::Bridge, kept(masquerade(1, six)), address),
                    (true, false) => (from, Side::Outside, kept(self.node.address(six)), address),
                }
            }
        };
        let after = Ends { source, destination };
        // Two pods have two ports; the uplink and the bridge's own are one each.
        let back = from == to && (from != Side::Pod || is_itself);
        legs.push(Leg { node: self.node, from, to, before: self.ends, after, back });
        let last = match to {
            Side::Tunnel => Some((Side::Tunnel, Side::Pod)),
            Side::Outside => Some((Side::Outside, Side::Bridge)),
            Side::Pod | Side::Bridge | Side::Management => None,
        };
        if let Some((from, to)) = last {
            legs.push(unchanged(endpoint.node, from, to, after));
        }
        Way { endpoint, seen: source, legs }
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
