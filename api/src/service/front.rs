//! Where clients reach the ports of a service.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::{Service, ServicePort};

/// Where clients reach a service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Front {
    /// A cluster, external or load balancer address, and the port there.
    Address(IpAddr, u16),
    /// The port on every node.
    NodePort(u16),
}

impl Front {
    /// What a destination may be: a service's address, or else a node's with a node port.
    #[must_use]
    pub fn candidates(destination: (IpAddr, u16)) -> [Self; 2] {
        [Self::Address(destination.0, destination.1), Self::NodePort(destination.1)]
    }
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Address(ip, port) => SocketAddr::new(ip, port).fmt(f),
            Self::NodePort(port) => write!(f, "node port {port}"),
        }
    }
}

impl Service {
    /// Every place where a port of the service is reached. None for services without load balancing.
    pub fn fronts(&self) -> impl Iterator<Item = (&ServicePort, Front)> {
        let ips: BTreeSet<IpAddr> = self.cluster_ips.iter().chain(&self.external_ips).copied().collect();
        let ports = self.ports.iter().filter(|_| self.is_balanced());
        ports.flat_map(move |port| {
            let node_port = port.node_port.map(Front::NodePort);
            let addresses = ips.iter().map(|ip| Front::Address(*ip, port.port));
            addresses.chain(node_port).map(move |front| (port, front)).collect::<Vec<_>>()
        })
    }
}
