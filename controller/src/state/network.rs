//! The network annotation of a pod: its addresses, gateways and routes.

use api::addr;
use api::annotation::{PodNetwork, PodRoute, ROLE_PRIMARY};
use ipnet::IpNet;

use crate::alloc::Allocation;
use crate::config::{Config, same_family};

/// The annotation of a pod with these addresses.
pub fn of_pod(config: &Config, allocation: &Allocation) -> PodNetwork {
    let gateways: Vec<_> = allocation.addresses.iter().filter_map(addr::gateway_of).collect();
    let mut routes = Vec::new();
    for gateway in &gateways {
        let clusters = config.cluster_subnets.iter().map(|subnet| subnet.cidr);
        let hairpin = config.masquerade(*gateway).map(|addresses| IpNet::from(addresses.hairpin));
        let destinations =
            clusters.chain(config.service_cidrs.iter().copied()).chain(hairpin).chain(config.join(*gateway));
        let of_family = destinations.filter(|dest| same_family(dest.addr(), *gateway));
        routes.extend(of_family.map(|dest| PodRoute { dest, next_hop: *gateway }));
    }
    let single = allocation.addresses.len() == 1;
    PodNetwork {
        ip_address: allocation.addresses.first().copied().filter(|_| single),
        gateway_ip: gateways.first().copied().filter(|_| single),
        ip_addresses: allocation.addresses.clone(),
        mac_address: allocation.mac,
        gateway_ips: gateways,
        routes,
        role: Some(ROLE_PRIMARY.to_owned()),
        interface: None,
        mtu: None,
        detect_duplicates: false,
    }
}
