//! Addresses derived from other addresses: a subnet's gateway and management port, a node's join address, and the
//! well-known addresses of the masquerade subnet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a range.
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }

    /// `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Join ranges used where none is configured, one for each family; the same as in ovn-kubernetes.
pub const DEFAULT_JOIN: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 0), 64)),
];

/// Masquerade ranges used where none is configured, one for each family; the same as in ovn-kubernetes.
pub const DEFAULT_MASQUERADE: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 169, 0), 29)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfd69, 0, 0, 0, 0, 0, 0, 0), 125)),
];

/// `given`, and the default range of each of `families` that it lacks.
pub fn with_defaults(
    given: &[IpNet],
    families: impl IntoIterator<Item = Family>,
    defaults: &[IpNet],
) -> Vec<IpNet> {
    let mut ranges = given.to_vec();
    for family in families {
        if !ranges.iter().any(|net| Family::of_net(net) == family) {
            ranges.extend(defaults.iter().find(|net| Family::of_net(net) == family));
        }
    }
    ranges
}

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
    /// `.4`: the next hop that represents OVN on the bridge.
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
    fn a_family_without_a_range_gets_the_default_and_no_other_does() {
        let v4: IpNet = "100.65.0.0/16".parse().unwrap();
        assert_eq!(with_defaults(&[v4], [Family::V4], &DEFAULT_JOIN), [v4]);
        let both = with_defaults(&[v4], [Family::V4, Family::V6], &DEFAULT_JOIN);
        assert_eq!(both, [v4, "fd98::/64".parse().unwrap()]);
        let only_v6 = with_defaults(&[], [Family::V6], &DEFAULT_MASQUERADE);
        assert_eq!(only_v6, ["fd69::/125".parse().unwrap()]);
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
