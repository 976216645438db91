//! External connectivity of the node: address of each family, next hops, and tunnel endpoint. Pure.

use std::net::IpAddr;

use api::addr::Family;
use ipnet::IpNet;

use super::{FamilyGateway, MasqueradeRange};
use crate::config::{Config, EncapIp};

/// External connectivity of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Address families with an address on the bridge, IPv4 first.
    pub families: Vec<FamilyGateway>,
    /// Gateways of the physical network.
    pub next_hops: Vec<IpAddr>,
    /// The node's tunnel endpoint.
    pub encap_ip: IpAddr,
}

/// Derives it from the node's own addresses on the bridge and the next hops of its default routes. Next hops named by the operator take
/// precedence. Without a default route the next hops of `before` are kept, with a warning, as OVN continues to use them. Returns `None`
/// without any address.
pub(super) fn reach(
    config: &Config,
    masquerade: &[MasqueradeRange],
    addresses: &[IpNet],
    hops: &[IpAddr],
    before: Option<&Reach>,
) -> (Option<Reach>, Vec<String>) {
    let mut warnings = Vec::new();
    let (mut families, mut next_hops) = (Vec::new(), Vec::new());
    for range in masquerade {
        let family = Family::of_net(&range.subnet);
        let of_family = |hops: &[IpAddr]| -> Vec<IpAddr> {
            hops.iter().copied().filter(|hop| Family::of(*hop) == family).collect()
        };
        let name = family.name();
        let named = of_family(&config.gateway_next_hop);
        let mut hops = if named.is_empty() { of_family(hops) } else { named };
        let old = before.and_then(|b| b.families.iter().find(|f| Family::of_net(&f.address) == family));
        let Some(address) = node_address(addresses, family, &hops, old.map(|f| f.address)) else {
            // With a single family there is no gateway at all; with two, the other one works.
            warnings.push(format!(
                "the gateway interface has no {name} address: pods of this node have no {name} connectivity to the outside, \
                 and the node serves no {name} node ports"
            ));
            continue;
        };
        if hops.is_empty() {
            hops = before.map(|b| of_family(&b.next_hops)).unwrap_or_default();
            let then = match hops.is_empty() {
                true => "reach only directly connected networks",
                false => "keep using the previous next hop",
            };
            warnings.push(format!(
                "there is no {name} default route through a next hop: pods of this node {then} by {name}; add one, or name \
                 the gateway of the physical network with --gateway-next-hop"
            ));
        }
        next_hops.extend(hops);
        let of_family = |net: &&IpNet| Family::of_net(net) == family;
        let service_cidrs = config.served_ranges().iter().filter(of_family).copied().collect();
        families.push(FamilyGateway { address, masquerade: *range, service_cidrs });
    }
    let reach = families.first().map(|first| first.address.addr()).map(|first| Reach {
        encap_ip: match config.encap_ip {
            EncapIp::Auto => first,
            EncapIp::Fixed(ip) => ip,
        },
        families,
        next_hops,
    });
    (reach, warnings)
}

/// The node's address of a family: one whose subnet has a next hop, preferably the address of `before`; else the address of `before`,
/// else the first.
fn node_address(
    addresses: &[IpNet],
    family: Family,
    hops: &[IpAddr],
    before: Option<IpNet>,
) -> Option<IpNet> {
    let all = || addresses.iter().copied().filter(|a| Family::of_net(a) == family);
    let near = |net: &IpNet| hops.iter().any(|hop| net.contains(hop));
    let before = before.filter(|net| all().any(|a| a == *net));
    before.filter(near).or_else(|| all().find(near)).or(before).or_else(|| all().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use crate::gateway::masquerade_ranges;

    fn found(addresses: &[&str], hops: &[&str], before: Option<&Reach>) -> (Option<Reach>, Vec<String>) {
        let config = config(&["--cluster-subnets=10.244.0.0/16/24,fd00:10:244::/48"]);
        let addresses: Vec<IpNet> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let hops: Vec<IpAddr> = hops.iter().map(|a| a.parse().unwrap()).collect();
        reach(&config, &masquerade_ranges(&config).unwrap(), &addresses, &hops, before)
    }

    fn address(reach: &Reach, n: usize) -> String {
        reach.families[n].address.to_string()
    }

    #[test]
    fn the_address_near_the_next_hop_is_the_node_s_and_it_stays_while_it_is_there() {
        let (first, _) = found(&["192.168.1.5/24", "10.0.0.5/24"], &["10.0.0.1"], None);
        let first = first.unwrap();
        assert_eq!(address(&first, 0), "10.0.0.5/24");
        assert_eq!(first.encap_ip.to_string(), "10.0.0.5");
        let both = ["10.0.0.6/24", "10.0.0.5/24"];
        let (now, _) = found(&both, &["10.0.0.1"], Some(&first));
        assert_eq!(address(&now.unwrap(), 0), "10.0.0.5/24");
        let (now, _) = found(&both[..1], &["10.0.0.1"], Some(&first));
        assert_eq!(address(&now.unwrap(), 0), "10.0.0.6/24");
    }

    #[test]
    fn a_new_gateway_in_another_subnet_takes_the_address_along() {
        let (first, _) = found(&["10.0.0.5/24"], &["10.0.0.1"], None);
        let (now, _) = found(&["10.0.0.5/24", "10.1.0.5/24"], &["10.1.0.1"], first.as_ref());
        let now = now.unwrap();
        assert_eq!(
            (address(&now, 0).as_str(), now.next_hops[0].to_string().as_str()),
            ("10.1.0.5/24", "10.1.0.1")
        );
    }

    #[test]
    fn a_second_family_that_comes_later_is_taken_and_one_that_goes_is_left() {
        let (first, warnings) = found(&["10.0.0.5/24"], &["10.0.0.1"], None);
        assert!(warnings.iter().any(|w| w.contains("no IPv6 address")), "{warnings:?}");
        let (now, warnings) = found(&["10.0.0.5/24", "fd00::5/64"], &["10.0.0.1", "fe80::1"], first.as_ref());
        let now = now.unwrap();
        assert_eq!((now.families.len(), now.next_hops.len(), warnings.len()), (2, 2, 0));
        let (now, _) = found(&["10.0.0.5/24"], &["10.0.0.1"], Some(&now));
        assert_eq!(now, first);
    }

    #[test]
    fn without_a_default_route_the_old_gateway_is_kept_and_told() {
        let (first, _) = found(&["10.0.0.5/24"], &["10.0.0.1"], None);
        let (now, warnings) = found(&["10.0.0.5/24"], &[], first.as_ref());
        assert_eq!(now.unwrap().next_hops, first.unwrap().next_hops);
        assert!(warnings.iter().any(|w| w.contains("keep using the previous next hop")), "{warnings:?}");
        assert_eq!(found(&[], &[], None).0, None);
    }
}
