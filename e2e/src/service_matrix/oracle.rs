//! What must become of a cell: who may answer, whom the answerer sees, and the way through each node's OVS. Written from what Kubernetes
//! defines and ovn-kubernetes does (`docs/services.md`); it knows nothing of flows and load balancers of this product. Pure.
//!
//! A client meets a service at one of three places. Pods meet it at their own node's switch, which changes the destination alone. A
//! node's own processes, and whoever comes from outside, meet it at that node's gateway router, which puts itself in the client's place
//! unless the policy is Local. A node's own processes reach pods of their node, and services with an internal policy Local, by the management port.
//!
//! In gateway mode local the node's own stack stands between the uplink and OVN. It translates what comes from outside to the cluster
//! address, or with policy Local to the node's switch, and the source of what pods send to the outside to its own address.

use std::net::{IpAddr, SocketAddr};

use super::cell::{Backends, Cell, Client, Node, Target};
use super::world::{BEHIND_HOST_PORT, World, backend_ports, masquerade, node_port};

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
    /// The node's stack gave it a source of its own before, with a port that nobody knows.
    pub(super) anew: bool,
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
    let arriving = |node, before, ends| {
        if world.local_gateway {
            return arriving_at_the_stack(cell, world, node, before, ends);
        }
        let local = kind.external_local && target != Target::HostPort;
        Meeting {
            before,
            ends,
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
    let Some(own) = client.node() else { return arriving(addressed.unwrap_or(Node::N1), Vec::new(), ends) };
    let is_host = matches!(client, Client::NearHost | Client::FarHost);
    if let Some(node) = addressed.filter(|node| *node != own) {
        // To another node: pods in the name of their own.
        let after = if is_host { ends } else { Ends { source: own.address(six), ..ends } };
        let legs = if is_host {
            vec![unchanged(own, Side::Bridge, Side::Outside, ends)]
        } else if world.local_gateway {
            vec![unchanged(own, Side::Pod, Side::Management, ends), out_anew(own, after)]
        } else {
            let (from, to) = (Side::Pod, Side::Outside);
            vec![Leg { node: own, from, to, before: ends, after, back: false, anew: false }]
        };
        return arriving(node, legs, after);
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
        return arriving(node, vec![leg], ends);
    }
    // The node translates its own and external addresses to the cluster address; cluster addresses have a route with a source.
    let source = if target == Target::ClusterIp { masquerade(2, six) } else { ends.source };
    let ends = Ends { source, destination: world.cluster(cell) };
    Meeting { ends, ..meeting(own, Place::Gateway(Side::Bridge)) }
}

/// Whoever comes from outside to a node in gateway mode local.
fn arriving_at_the_stack(
    cell: &Cell,
    world: &World,
    node: Node,
    mut before: Vec<Leg>,
    ends: Ends,
) -> Meeting {
    let Cell { target, kind, six, .. } = *cell;
    before.push(unchanged(node, Side::Outside, Side::Bridge, ends));
    let is_local = kind.external_local && target != Target::HostPort;
    let only_on = is_local.then_some(node);
    let to = |destination, place| Meeting {
        node,
        place,
        before: before.clone(),
        ends: Ends { destination, ..ends },
        only_on,
        keeps_client: false,
    };
    let host_backend = endpoints(cell).iter().any(|endpoint| endpoint.host && endpoint.node == node);
    match (target, is_local) {
        (Target::HostPort, _) => to(ends.destination, Place::Node(Some(Side::Management))),
        (_, true) if host_backend => to(ends.destination, Place::Node(None)),
        (_, true) => to((masquerade(3, six), node_port(&kind)).into(), Place::Switch(Side::Management)),
        (_, false) => to(world.cluster(cell), Place::Gateway(Side::Bridge)),
    }
}

fn unchanged(node: Node, from: Side, to: Side, ends: Ends) -> Leg {
    Leg { node, from, to, before: ends, after: ends, back: false, anew: false }
}

/// From a node's stack, which has put the node in the sender's place.
fn out_anew(node: Node, ends: Ends) -> Leg {
    Leg { anew: true, ..unchanged(node, Side::Bridge, Side::Outside, ends) }
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
        let mut after = Ends { source, destination };
        let mut leg = Leg { node: self.node, from, to, before: self.ends, after, back: false, anew: false };
        let mut seen = source;
        if to == Side::Outside && world.local_gateway && matches!(self.place, Place::Switch(_)) {
            (leg.to, leg.after.source) = (Side::Management, self.ends.source);
            seen = self.node.address(six);
            after.source = seen;
        }
        // Two pods have two ports; the uplink and the bridge's own are one each.
        leg.back = leg.from == leg.to && (leg.from != Side::Pod || is_itself);
        let by_the_stack = leg.to != to;
        legs.push(leg);
        if by_the_stack {
            legs.push(out_anew(self.node, after));
        }
        let last = match to {
            Side::Tunnel => Some((Side::Tunnel, Side::Pod)),
            Side::Outside => Some((Side::Outside, Side::Bridge)),
            Side::Pod | Side::Bridge | Side::Management => None,
        };
        if let Some((from, to)) = last {
            legs.push(unchanged(endpoint.node, from, to, after));
        }
        Way { endpoint, seen, legs }
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
