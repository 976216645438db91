//! The addresses of the matrix: of its pods, nodes and services, and those that OVN uses for them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use testbed::cluster::config::{EXT_IP, node_ip, underlay_ip6};

use super::cell::{Cell, Client, Kind, Node, Target, kinds};

/// Ports of each backend: by external policy two, each of which is an endpoint, so that affinity has a choice wherever the backend is.
/// With one endpoint for both policies OVN's affinity takes the node ports of both for one (docs/services.md, "Not there").
pub(super) const BACKEND_PORTS: [[u16; 2]; 2] = [[7300, 7301], [7302, 7303]];
/// The port of the backend on n1 to which its host port leads.
pub(super) const BEHIND_HOST_PORT: u16 = BACKEND_PORTS[0][0];
/// Host port of the backend on n1.
pub(super) const HOST_PORT: u16 = 7400;
/// Port of every service.
pub(super) const SERVICE_PORT: u16 = 7200;
/// The first service's node port; the others follow.
const NODE_PORTS: u16 = 31_300;

/// An address of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair(pub(super) Ipv4Addr, pub(super) Ipv6Addr);

impl Pair {
    pub(super) fn of(self, six: bool) -> IpAddr {
        if six { self.1.into() } else { self.0.into() }
    }

    /// Of a host on the underlay.
    fn underlay(ip: Ipv4Addr) -> Self {
        Self(ip, underlay_ip6(ip))
    }
}

/// What differs from cluster to cluster.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// The client pods, on n1 and n2.
    pub(super) clients: [Pair; 2],
    /// The backend pods, on n1 and n2.
    pub(super) backends: [Pair; 2],
    /// Cluster addresses, in the order of [`kinds`].
    pub(super) cluster_ips: Vec<Pair>,
    /// Pods reach the outside by the node's own network stack.
    pub(super) local_gateway: bool,
}

impl Node {
    fn index(self) -> u8 {
        match self {
            Self::N1 => 1,
            Self::N2 => 2,
        }
    }

    pub(super) fn address(self, six: bool) -> IpAddr {
        Pair::underlay(node_ip(self.index())).of(six)
    }

    /// Of its gateway router, which OVN numbers in the order of the nodes.
    pub(super) fn join(self, six: bool) -> IpAddr {
        let last = self.index() + 1;
        Pair(Ipv4Addr::new(100, 64, 0, last), Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, last.into())).of(six)
    }
}

/// One of the addresses by which a node and OVN name each other.
pub(super) fn masquerade(last: u8, six: bool) -> IpAddr {
    Pair(Ipv4Addr::new(169, 254, 169, last), Ipv6Addr::new(0xfd69, 0, 0, 0, 0, 0, 0, last.into())).of(six)
}

/// Of the outside.
pub(super) fn outside(six: bool) -> IpAddr {
    Pair::underlay(EXT_IP).of(six)
}

/// The number of a service, counted from 0.
fn number(kind: &Kind) -> u8 {
    let place = kinds().iter().position(|other| other == kind);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

/// The ports of a service's endpoints.
pub(super) fn backend_ports(kind: &Kind) -> [u16; 2] {
    BACKEND_PORTS[usize::from(kind.external_local)]
}

/// A service's node port.
pub(super) fn node_port(kind: &Kind) -> u16 {
    NODE_PORTS + u16::from(number(kind))
}

/// The third part of addresses that the outside reaches by a node: external ones, and a load balancer's.
fn range(load_balancer: bool, node: Node) -> u8 {
    match (load_balancer, node) {
        (false, Node::N1) => 20,
        (false, Node::N2) => 21,
        (true, Node::N1) => 22,
        (true, Node::N2) => 23,
    }
}

/// A network of external addresses, of both families, as routes have them.
pub(super) fn network(load_balancer: bool, node: Node) -> [String; 2] {
    let part = range(load_balancer, node);
    [format!("172.18.{part}.0/24"), format!("fd00:172:18:{part}::/64")]
}

/// An external or load balancer address of a service.
pub(super) fn external(kind: &Kind, load_balancer: bool, node: Node) -> Pair {
    let (part, last) = (range(load_balancer, node), number(kind) + 1);
    // Both read alike: 172.18.20.1, fd00:172:18:20::1.
    let six = u16::from(part / 10) * 0x10 + u16::from(part % 10);
    Pair(
        Ipv4Addr::new(172, 18, part, last),
        Ipv6Addr::new(0xfd00, 0x172, 0x18, six, 0, 0, 0, u16::from(last)),
    )
}

impl World {
    /// What the client of a cell connects to.
    pub(super) fn destination(&self, cell: &Cell) -> SocketAddr {
        let Cell { target, kind, six, .. } = cell;
        match target {
            Target::ClusterIp => self.cluster(cell),
            Target::NodePort(node) => (node.address(*six), node_port(kind)).into(),
            Target::HostPort => (Node::N1.address(*six), HOST_PORT).into(),
            Target::ExternalIp(node) => (external(kind, false, *node).of(*six), SERVICE_PORT).into(),
            Target::LoadBalancer(node) => (external(kind, true, *node).of(*six), SERVICE_PORT).into(),
        }
    }

    /// The cluster address of a cell's service.
    pub(super) fn cluster(&self, cell: &Cell) -> SocketAddr {
        let ip = self.cluster_ips.get(usize::from(number(&cell.kind)));
        (ip.map_or(Ipv4Addr::UNSPECIFIED.into(), |pair| pair.of(cell.six)), SERVICE_PORT).into()
    }

    /// The client's own address, as others see it where nobody translates.
    pub(super) fn client(&self, cell: &Cell) -> IpAddr {
        match cell.client {
            Client::NearPod => self.clients[0].of(cell.six),
            Client::FarPod => self.clients[1].of(cell.six),
            Client::Itself => self.backends[0].of(cell.six),
            Client::NearHost => Node::N1.address(cell.six),
            Client::FarHost => Node::N2.address(cell.six),
            Client::Outside => outside(cell.six),
        }
    }

    /// The address of a node among its pods: the second of its range.
    pub(super) fn management(&self, node: Node, six: bool) -> IpAddr {
        let Pair(v4, v6) = self.clients[usize::from(node.index() - 1)];
        let ([a, b, c, _], [d, e, f, g, ..]) = (v4.octets(), v6.segments());
        Pair(Ipv4Addr::new(a, b, c, 2), Ipv6Addr::new(d, e, f, g, 0, 0, 0, 2)).of(six)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// As a new cluster has them.
    pub(in crate::service_matrix) fn world() -> World {
        let pod = |node: u8, last: u8| {
            let six = format!("fd00:10:244:{node}::{last}").parse().unwrap();
            Pair(Ipv4Addr::new(10, 244, node, last), six)
        };
        let cluster = |n: u8| {
            Pair(Ipv4Addr::new(10, 96, 1, n), Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, u16::from(n)))
        };
        World {
            clients: [pod(0, 4), pod(1, 4)],
            backends: [pod(0, 3), pod(1, 3)],
            cluster_ips: (0..24).map(cluster).collect(),
            local_gateway: false,
        }
    }

    #[test]
    fn every_service_has_addresses_of_its_own() {
        let mut ports: Vec<u16> = kinds().iter().map(node_port).collect();
        ports.dedup();
        assert_eq!(ports.len(), 24);
        let kind = kinds()[23];
        assert_eq!(external(&kind, false, Node::N1).of(false).to_string(), "172.18.20.24");
        assert_eq!(external(&kind, true, Node::N2).of(true).to_string(), "fd00:172:18:23::18");
        assert_eq!(network(true, Node::N2), ["172.18.23.0/24", "fd00:172:18:23::/64"]);
    }

    #[test]
    fn a_node_is_second_among_its_pods() {
        assert_eq!(world().management(Node::N2, false).to_string(), "10.244.1.2");
        assert_eq!(world().management(Node::N2, true).to_string(), "fd00:10:244:1::2");
        assert_eq!(Node::N2.join(true).to_string(), "fd98::3");
        assert_eq!(masquerade(5, true).to_string(), "fd69::5");
    }
}
