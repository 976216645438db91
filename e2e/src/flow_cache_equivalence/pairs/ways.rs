//! The ways of the comparison: who asks whom, at which address, and what OVS's pairs of sides are on it.

use std::net::IpAddr;

use anyhow::{Context, Result};

use super::super::cases::{Addresses, tcp};
use super::super::frame::{ACK, Packet, Upper};
use super::super::scene::{Scene, Who};
use super::posts::{Posts, Sender};
use super::route;
use super::trace::Side;
use crate::demo::echoes::{PORT, Service};
use node_agent::bpf::AGREEING;
use testbed::cluster::config::{EXT_IP, node_ip, underlay_ip6};

/// Port of the services.
const SERVICE_PORT: u16 = 7300;
/// Node ports: of the service whose backend is on the first node, with policy Local; and of the one on the second.
const NODE_PORTS: [u16; 2] = [30_181, 30_182];
/// The clients' first port.
const FIRST: u16 = 21_000;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// Pod a, on the first node.
    Pod,
    /// The first node.
    Node,
    /// The host outside.
    Outside,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A pod.
    Pod(Who),
    /// The service with a backend in pod c, on the first node, or b, on the second.
    Service(Who),
    /// The first node's port of that service.
    NodePort(Who),
    /// The host outside.
    Outside,
    /// The first node.
    Node,
}

/// A way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) client: Client,
    pub(super) target: Target,
    /// OVS translates both ends of it on the first node, so that UDP is carried there when several answers agree.
    pub(super) both_ends: bool,
    /// The pairs of sides, there and back.
    pub(super) pairs: &'static [(Side, Side)],
}

use Side::{Bridge, Management, Outside, Pod, Tunnel};

const fn way(
    name: &'static str,
    client: Client,
    target: Target,
    both_ends: bool,
    pairs: &'static [(Side, Side)],
) -> Way {
    Way { name, client, target, both_ends, pairs }
}

/// All of them.
pub(super) const WAYS: &[Way] = &[
    way("pod -> pod, same node", Client::Pod, Target::Pod(Who::C), false, &[(Pod, Pod)]),
    way("pod -> pod, other node", Client::Pod, Target::Pod(Who::B), false, &[(Pod, Tunnel), (Tunnel, Pod)]),
    way("pod -> ClusterIP, same node", Client::Pod, Target::Service(Who::C), false, &[(Pod, Pod)]),
    way(
        "pod -> ClusterIP, other node",
        Client::Pod,
        Target::Service(Who::B),
        false,
        &[(Pod, Tunnel), (Tunnel, Pod)],
    ),
    way("pod -> outside", Client::Pod, Target::Outside, false, &[(Pod, Outside), (Outside, Pod)]),
    way(
        "node -> pod, own",
        Client::Node,
        Target::Pod(Who::C),
        false,
        &[(Management, Pod), (Pod, Management)],
    ),
    way(
        "node -> pod, other node",
        Client::Node,
        Target::Pod(Who::B),
        false,
        &[(Management, Tunnel), (Tunnel, Management), (Tunnel, Pod), (Pod, Tunnel)],
    ),
    way(
        "node -> ClusterIP, own pod",
        Client::Node,
        Target::Service(Who::C),
        true,
        &[(Bridge, Pod), (Pod, Bridge)],
    ),
    way(
        "node -> ClusterIP, other's pod",
        Client::Node,
        Target::Service(Who::B),
        true,
        &[(Bridge, Tunnel), (Tunnel, Bridge), (Tunnel, Pod), (Pod, Tunnel)],
    ),
    way(
        "outside -> NodePort, policy Local",
        Client::Outside,
        Target::NodePort(Who::C),
        false,
        &[(Outside, Pod), (Pod, Outside)],
    ),
    way(
        "outside -> NodePort, other's pod",
        Client::Outside,
        Target::NodePort(Who::B),
        true,
        &[(Outside, Tunnel), (Tunnel, Outside), (Tunnel, Pod), (Pod, Tunnel)],
    ),
    way("outside -> node", Client::Outside, Target::Node, false, &[(Outside, Bridge), (Bridge, Outside)]),
];

/// Pairs of sides by which OVS forwards connections between pods, services, nodes and the outside. Not among them: what goes out where
/// it came in (no entry is made), and between the node's two ports and from the management port to the outside, which no route leads to.
pub(super) const PAIRS: [(Side, Side); 17] = [
    (Pod, Pod),
    (Pod, Tunnel),
    (Pod, Outside),
    (Pod, Management),
    (Pod, Bridge),
    (Tunnel, Pod),
    (Tunnel, Outside),
    (Tunnel, Management),
    (Tunnel, Bridge),
    (Outside, Pod),
    (Outside, Tunnel),
    (Outside, Bridge),
    (Management, Pod),
    (Management, Tunnel),
    (Bridge, Pod),
    (Bridge, Tunnel),
    (Bridge, Outside),
];

/// A connection by a way.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) way: &'static Way,
    pub(super) udp: bool,
    pub(super) six: bool,
    pub(super) number: u8,
    /// Who sends to the server, and the plainest packet.
    pub(super) there: (Sender, Packet),
    /// The same from the server, once it has been seen how the client comes to it.
    pub(super) back: Option<(Sender, Packet)>,
}

impl Flow {
    pub(super) fn name(&self) -> String {
        let protocol = if self.udp { "UDP" } else { "TCP" };
        format!("{protocol} over IPv{} {}", if self.six { 6 } else { 4 }, self.way.name)
    }

    /// How many packets teach it at once. UDP is learned from the second one, and where both ends are translated some more have to come out
    /// the same; but before an answer comes OVS's userspace datapath leaves the source of a second one as it is.
    pub(super) fn packets_of_lesson(&self) -> usize {
        match (self.udp, self.way.both_ends) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) if self.back.is_none() => 1,
            (true, true) => 2 + usize::from(AGREEING),
        }
    }

    /// Who answers.
    pub(super) fn server(&self) -> Sender {
        match self.way.target {
            Target::Pod(who) | Target::Service(who) | Target::NodePort(who) => Sender::Pod(who),
            Target::Outside => Sender::Outside,
            Target::Node => Sender::Bridge,
        }
    }

    /// The number of the node (from 0) whose OVS gets what this one sends first.
    pub(super) fn node_of(sender: Sender) -> usize {
        usize::from(sender == Sender::Pod(Who::B))
    }
}

/// The two services.
#[derive(Debug)]
pub(super) struct Services {
    near: Vec<IpAddr>,
    far: Vec<IpAddr>,
}

impl Services {
    /// Makes them.
    pub(super) fn create(scene: &Scene<'_>) -> Result<Self> {
        let create = |name, who: Who, node_port, local| {
            let member = scene.member(who);
            let node = &scene.nodes[usize::from(who == Who::B)];
            let backends = [(member.ipv4.into(), node.as_str()), (member.ipv6, node.as_str())];
            Service {
                namespace: super::super::scene::NAMESPACE,
                name,
                port: SERVICE_PORT,
                backends: &backends,
                node_port: Some(node_port),
                local,
            }
            .create(scene.bed)
        };
        Ok(Self {
            near: create("near", Who::C, NODE_PORTS[0], true)?,
            far: create("far", Who::B, NODE_PORTS[1], false)?,
        })
    }

    fn of(&self, who: Who) -> &[IpAddr] {
        if who == Who::B { &self.far } else { &self.near }
    }
}

/// Address and port that a client asks.
fn asked(scene: &Scene<'_>, services: &Services, target: Target, six: bool) -> Result<(IpAddr, u16)> {
    let underlay = |ip| -> IpAddr { if six { underlay_ip6(ip).into() } else { ip.into() } };
    let node_port = |who| NODE_PORTS[usize::from(who == Who::B)];
    Ok(match target {
        Target::Pod(who) => {
            let member = scene.member(who);
            (if six { member.ipv6 } else { member.ipv4.into() }, PORT)
        }
        Target::Service(who) => {
            let list = services.of(who);
            let ip = list.iter().find(|ip| ip.is_ipv6() == six);
            (*ip.with_context(|| format!("the service has {list:?}"))?, SERVICE_PORT)
        }
        Target::NodePort(who) => (underlay(node_ip(1)), node_port(who)),
        Target::Outside => (underlay(EXT_IP), PORT),
        Target::Node => (underlay(node_ip(1)), PORT),
    })
}

/// All connections: each way with both protocols and both families.
pub(super) fn flows(scene: &Scene<'_>, services: &Services) -> Result<Vec<Flow>> {
    let addresses = Addresses::of(scene);
    let mut list = Vec::new();
    for way in WAYS {
        for (udp, six) in [(false, false), (true, false), (false, true), (true, true)] {
            let number = u8::try_from(list.len())?;
            let (to, port) = asked(scene, services, way.target, six)?;
            let ports = [FIRST + u16::from(number), port];
            let upper = if udp { Upper::Udp } else { tcp(ACK) };
            let host = |host: &str| -> Result<(String, Packet)> {
                let route = route::to(scene, host, to)?;
                let macs = [route.next, route.own];
                Ok((route.interface, Packet::new(macs, route.source, to, ports, upper.clone())))
            };
            let there = match way.client {
                Client::Pod => {
                    // To a pod of its own node it addresses the pod; everything else goes to its router.
                    let toward = if way.target == Target::Pod(Who::C) { Who::C } else { Who::B };
                    let packet = addresses.packet(Who::A, toward, six, ports, upper.clone());
                    (Sender::Pod(Who::A), Packet { destination: to, ..packet })
                }
                Client::Node => {
                    let (interface, packet) = host("n1")?;
                    let sender = Posts::sender(&interface)
                        .with_context(|| format!("{}: the node's route is by {interface}", way.name))?;
                    (sender, packet)
                }
                Client::Outside => (Sender::Outside, host("ext")?.1),
            };
            list.push(Flow { way, udp, six, number, there, back: None });
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_ways_have_every_pair_and_no_other() {
        let on_ways: BTreeSet<_> = WAYS.iter().flat_map(|way| way.pairs).copied().collect();
        assert_eq!(on_ways, BTreeSet::from(PAIRS));
    }

    #[test]
    fn the_clients_ports_are_those_that_are_kept_from_the_hosts() {
        let last = FIRST + u16::try_from(WAYS.len() * 4).unwrap() - 1;
        assert!(last <= FIRST + u16::from(u8::MAX));
        for port in [PORT, SERVICE_PORT, FIRST, NODE_PORTS[0]] {
            assert!(super::super::posts::PORTS.contains(&port.to_string()), "{port}");
        }
    }
}
