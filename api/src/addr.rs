//! Addresses that follow from other addresses: a subnet's gateway and management port, a node's join address, and the
//! well-known addresses of the masquerade subnet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The `n`-th address of `subnet` (0 is the network address), or `None` when it lies outside.
pub fn nth(subnet: &IpNet, n: u32) -> Option<IpAddr> {
    let ip = match subnet {
        IpNet::V4(net) => IpAddr::V4(Ipv4Addr::from(u32::from(net.network()).checked_add(n)?)),
        IpNet::V6(net) => IpAddr::V6(Ipv6Addr::from(u128::from(net.network()).checked_add(u128::from(n))?)),
    };
    subnet.contains(&ip).then_some(ip)
}

/// `ip/len` with the prefix length of `subnet`.
pub fn with_prefix_of(ip: IpAddr, subnet: &IpNet) -> String {
    format!("{ip}/{}", subnet.prefix_len())
}

/// The node switch's router port: the first host address.
pub fn gateway_of(subnet: &IpNet) -> Option<IpAddr> {
    nth(subnet, 1)
}

/// The node's management port `ovn-k8s-mp0`: the second host address.
pub fn management_of(subnet: &IpNet) -> Option<IpAddr> {
    nth(subnet, 2)
}

/// The gateway router's address on the join switch: the `node_id`-th address of the join subnet.
pub fn join_of(join: &IpNet, node_id: u32) -> Option<IpAddr> {
    nth(join, node_id)
}

/// Addresses inside the masquerade subnet, by their fixed offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masquerade {
    /// `.1`: OVN, seen from the host.
    pub ovn: IpAddr,
    /// `.2`: the host, seen from OVN.
    pub host: IpAddr,
    /// `.3`: the host path of services with external traffic policy Local.
    pub local_service: IpAddr,
    /// `.4`: the next hop that stands for OVN on the bridge.
    pub next_hop: IpAddr,
    /// `.5`: the source of a pod's connection to itself through a service.
    pub hairpin: IpAddr,
}

impl Masquerade {
    /// `None` when the subnet holds fewer than five host addresses.
    pub fn of(subnet: &IpNet) -> Option<Self> {
        Some(Self {
            ovn: nth(subnet, 1)?,
            host: nth(subnet, 2)?,
            local_service: nth(subnet, 3)?,
            next_hop: nth(subnet, 4)?,
            hairpin: nth(subnet, 5)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_offsets_of_a_node_subnet() {
        let net: IpNet = "10.244.1.0/24".parse().unwrap();
        assert_eq!(gateway_of(&net).unwrap().to_string(), "10.244.1.1");
        assert_eq!(management_of(&net).unwrap().to_string(), "10.244.1.2");
        assert_eq!(with_prefix_of(gateway_of(&net).unwrap(), &net), "10.244.1.1/24");
    }

    #[test]
    fn an_address_outside_the_subnet_is_none() {
        assert_eq!(nth(&"10.0.0.0/30".parse().unwrap(), 4), None);
        assert_eq!(nth(&"255.255.255.252/30".parse().unwrap(), 9), None);
        assert!(Masquerade::of(&"169.254.169.0/30".parse().unwrap()).is_none());
    }

    #[test]
    fn masquerade_addresses() {
        let m = Masquerade::of(&"169.254.169.0/29".parse().unwrap()).unwrap();
        assert_eq!(m.next_hop.to_string(), "169.254.169.4");
        assert_eq!(m.hairpin.to_string(), "169.254.169.5");
    }
}
