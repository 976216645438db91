//! The addresses and names of a cluster's hosts, and its ranges. A cluster has those of IPv4, of both families, or of IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address of the host with OVN's databases, and with etcd and API server if no node has them.
pub const CENTRAL_IP: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 10);
/// Address of the outside world on the underlay: the nodes' default gateway.
pub const EXT_IP: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
/// Address of the outside world beyond the gateway.
pub const OUTSIDE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Length of the underlay's prefix.
pub const UNDERLAY_PREFIX: u8 = 16;
/// Cluster and service ranges, and those that OVN uses inside.
pub const CLUSTER_SUBNETS: &str = "10.244.0.0/16/24";
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The range of services that kubeadm gives a cluster.
pub const SERVICE_CIDR_OF_KUBEADM: &str = "10.96.0.0/12";
pub const JOIN_SUBNET: &str = "100.64.0.0/16";
pub const MASQUERADE_SUBNET: &str = "169.254.169.0/29";
/// The first service address, which is the API server's.
pub const API_SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// MTU of pods: the underlay's 1500 less the 58 bytes of Geneve, rounded down.
pub const POD_MTU: u16 = 1400;
pub const API_PORT: u16 = 6443;
pub const NB_PORT: u16 = 6641;
pub const SB_PORT: u16 = 6642;
/// Where controller and agents serve their metrics and say whether they are ready, on their own host.
pub const CONTROLLER_PORT: u16 = 9409;
/// TCP port of the controller's API for virtual networks.
pub const NETWORK_API_PORT: u16 = 9412;
pub const AGENT_PORT: u16 = 9410;

/// Address of cluster DNS, where there is one.
pub const DNS_SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// That address where there is IPv6 alone.
pub const DNS_SERVICE_IP_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0x10);
/// The ranges of a dual-stack cluster's second family.
pub const CLUSTER_SUBNETS_6: &str = "fd00:10:244::/48/64";
pub const SERVICE_CIDR_6: &str = "fd00:10:96::/112";
pub const JOIN_SUBNET_6: &str = "fd98::/64";
pub const MASQUERADE_SUBNET_6: &str = "fd69::/125";
/// The first service address of that family.
pub const API_SERVICE_IP_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 1);
/// Address of the outside world beyond the gateway, of that family.
pub const OUTSIDE_IP_6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// Length of the underlay's IPv6 prefix.
pub const UNDERLAY_PREFIX_6: u8 = 64;

/// `n1`, `n2`, ..
#[must_use]
pub fn node_name(index: u8) -> String {
    format!("n{index}")
}

/// 172.18.0.2 for the first node, and so on.
#[must_use]
pub fn node_ip(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 18, 0, 1 + index)
}

/// The index in a node's name.
#[must_use]
pub fn node_index(name: &str) -> Option<u8> {
    name.strip_prefix('n')?.parse().ok()
}

/// `02:42` and the address, so that a capture is easy to read.
#[must_use]
pub fn underlay_mac(ip: Ipv4Addr) -> String {
    let [a, b, c, d] = ip.octets();
    format!("02:42:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// The chassis id of a node, fixed so that databases can be compared.
#[must_use]
pub fn system_id(index: u8) -> String {
    format!("00000000-0000-4000-8000-{index:012}")
}

/// The IPv6 address of a host on the underlay: its host part reads as the last part of the IPv4 address does, so
/// 172.18.0.10 is beside fd00:172:18::10.
#[must_use]
pub fn underlay_ip6(ip: Ipv4Addr) -> Ipv6Addr {
    let last = ip.octets()[3];
    let as_written = u16::from(last / 100) * 0x100 + u16::from(last / 10 % 10) * 0x10 + u16::from(last % 10);
    Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, as_written)
}

/// Whether an address is one of the underlay.
#[must_use]
pub fn is_underlay(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..2] == CENTRAL_IP.octets()[..2],
        IpAddr::V6(ip) => ip.segments()[..4] == underlay_ip6(CENTRAL_IP).segments()[..4],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_address_of_a_host_reads_like_its_first() {
        assert_eq!(underlay_ip6(CENTRAL_IP).to_string(), "fd00:172:18::10");
        assert_eq!(underlay_ip6(EXT_IP).to_string(), "fd00:172:18::1");
        assert_eq!(underlay_ip6(node_ip(2)).to_string(), "fd00:172:18::3");
    }

    #[test]
    fn hosts_are_on_the_underlay_and_pods_are_not() {
        assert!(is_underlay(CENTRAL_IP.into()));
        assert!(is_underlay(underlay_ip6(EXT_IP).into()));
        assert!(!is_underlay(DNS_SERVICE_IP.into()));
        assert!(!is_underlay(API_SERVICE_IP_6.into()));
    }
}
