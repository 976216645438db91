//! From a service's ports and endpoints to VIPs and their targets, for the cluster or for one node.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::config::Config;
use crate::index::{Node, Protocol};
use api::service::{Endpoint, Service};

use super::topology::{self, Scope};
use super::{node_addresses, serves_node_ports};

/// One service port on one kind of address: what clients connect to, and its endpoints.
pub(super) struct Exposure<'a> {
    vips: Vips,
    port: u16,
    endpoints: Vec<&'a Endpoint>,
    /// The result differs from node to node.
    pub(super) per_node: bool,
    /// `externalTrafficPolicy: Local` applies.
    pub(super) external_local: bool,
    /// `internalTrafficPolicy: Local` applies.
    internal_local: bool,
}

/// Addresses that clients connect to.
enum Vips {
    /// The service's own addresses.
    Fixed(Vec<IpAddr>),
    /// The addresses of every node, of the service's address families.
    OfNode { v4: bool, v6: bool },
}

/// A VIP with its targets, as the columns of a load balancer hold them: `ip:port` to `ip:port,…`, IPv6 in brackets.
pub(super) type VipRule = (String, String);

/// The exposures of a service's ports of one protocol. External traffic policy never applies to the cluster address, and
/// internal traffic policy applies to no other.
pub(super) fn exposures<'a>(
    service: &Service,
    protocol: Protocol,
    endpoints: &'a [Endpoint],
    config: &Config,
) -> Vec<Exposure<'a>> {
    let has = |v4: bool| service.cluster_ips.iter().any(|ip| ip.is_ipv4() == v4);
    let externals: Vec<IpAddr> =
        service.external_ips.iter().filter(|ip| has(ip.is_ipv4())).copied().collect();
    let subnets: Vec<_> = config.cluster_subnets.iter().map(|subnet| subnet.cidr).collect();
    let mut found = Vec::new();
    for port in service.ports.iter().filter(|port| port.protocol == protocol) {
        let behind: Vec<&Endpoint> = endpoints.iter().filter(|e| e.is_behind(port)).collect();
        let differs =
            behind.iter().any(|endpoint| endpoint.on_host(&subnets)) || topology::depends_on_node(&behind);
        let plain = |vips, number| Exposure {
            vips,
            port: number,
            endpoints: behind.clone(),
            per_node: differs,
            external_local: false,
            internal_local: false,
        };
        if let Some(node_port) = port.node_port {
            let vips = Vips::OfNode { v4: has(true), v6: has(false) };
            found.push(Exposure {
                per_node: true,
                external_local: service.external_local,
                ..plain(vips, node_port)
            });
        }
        let mut cluster = service.cluster_ips.clone();
        if service.external_local && !externals.is_empty() {
            let vips = Vips::Fixed(externals.clone());
            found.push(Exposure { per_node: true, external_local: true, ..plain(vips, port.port) });
        } else if service.internal_local && !externals.is_empty() {
            found.push(plain(Vips::Fixed(externals.clone()), port.port));
        } else {
            cluster.extend(&externals);
        }
        found.push(Exposure {
            per_node: differs || service.internal_local,
            internal_local: service.internal_local,
            ..plain(Vips::Fixed(cluster), port.port)
        });
    }
    found
}

impl Exposure<'_> {
    /// The VIPs of an exposure that is the same everywhere.
    pub(super) fn cluster_vips(&self) -> Vec<VipRule> {
        let Vips::Fixed(vips) = &self.vips else { return Vec::new() };
        vips.iter()
            .map(|vip| (socket(*vip, self.port), self.targets(*vip, Scope::Everywhere, |ip| ip)))
            .collect()
    }

    /// The VIPs on the node's switch, where clients are pods. External policy Local leaves out no endpoint for them, except on
    /// the address that represents the node's own processes.
    pub(super) fn switch_vips(&self, node: &Node, config: &Config) -> Vec<VipRule> {
        let scope = if self.internal_local { Scope::Local(node) } else { Scope::Cluster(node) };
        let mut rules = Vec::new();
        for vip in self.vips_on(node) {
            rules.push((socket(vip, self.port), self.targets(vip, scope, |ip| ip)));
            if self.external_local
                && matches!(self.vips, Vips::OfNode { .. })
                && let Some(masquerade) = config.masquerade(vip)
            {
                let local = masquerade.local_service;
                rules.push((socket(local, self.port), self.targets(vip, Scope::Local(node), |ip| ip)));
            }
        }
        rules
    }

    /// The VIPs on the node's gateway router, where clients come from outside or are the node itself. An endpoint on the
    /// node's own address is reached by the masquerade address, as the router also has the node's address.
    pub(super) fn router_vips(&self, node: &Node, config: &Config) -> Vec<VipRule> {
        let scope = if self.external_local { Scope::Local(node) } else { Scope::Cluster(node) };
        let own = node_addresses(node);
        let to_host = |ip: IpAddr| match config.masquerade(ip) {
            Some(masquerade) if own.contains(&ip) => masquerade.host,
            _ => ip,
        };
        self.vips_on(node)
            .into_iter()
            .map(|vip| (socket(vip, self.port), self.targets(vip, scope, to_host)))
            .collect()
    }

    fn vips_on(&self, node: &Node) -> Vec<IpAddr> {
        match &self.vips {
            Vips::Fixed(vips) => vips.clone(),
            Vips::OfNode { .. } if !serves_node_ports(node) => Vec::new(),
            Vips::OfNode { v4, v6 } => {
                node_addresses(node).into_iter().filter(|ip| if ip.is_ipv4() { *v4 } else { *v6 }).collect()
            }
        }
    }

    /// The chosen endpoints, in the database's format.
    fn targets(&self, vip: IpAddr, scope: Scope<'_>, rewrite: impl Fn(IpAddr) -> IpAddr) -> String {
        let chosen = topology::choose(&self.endpoints, vip, scope).into_iter();
        let targets: BTreeSet<_> = chosen.map(|e| socket(rewrite(e.address), e.port)).collect();
        targets.into_iter().collect::<Vec<_>>().join(",")
    }
}

fn socket(ip: IpAddr, port: u16) -> String {
    SocketAddr::new(ip, port).to_string()
}
