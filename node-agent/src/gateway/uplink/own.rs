//! Separates the node's own addresses from virtual ones (keepalived, kube-vip), which move with a machine's role: virtual addresses
//! are neither migrated nor restored, and never used as gateway address.

use api::addr::Family;
use ipnet::IpNet;

use crate::gateway::uplink::snapshot::SavedAddress;

/// The node's own addresses among `addresses`, in their order. `beside`: addresses on other interfaces of the node.
///
/// A single-host address (/32, /128) is virtual if the node has an address with a subnet of the same family. If it has only
/// single-host addresses, as in some clouds, the first is its own. An address with a lifetime is not virtual, as DHCPv6 assigns such.
pub fn own(addresses: &[SavedAddress], beside: &[SavedAddress]) -> Vec<SavedAddress> {
    let with_subnet = |family: Family| {
        let mut all = addresses.iter().chain(beside);
        all.any(|a| Family::of_net(&a.address) == family && !a.moves && !is_alone(&a.address))
    };
    let is_own = |a: &&SavedAddress| {
        let family = Family::of_net(&a.address);
        if a.moves {
            return false;
        }
        if !is_alone(&a.address) || a.leased {
            return true;
        }
        let first = beside.iter().chain(addresses).find(|b| Family::of_net(&b.address) == family && !b.moves);
        !with_subnet(family) && first.is_some_and(|first| first.is_same(a))
    };
    addresses.iter().filter(is_own).cloned().collect()
}

/// The node's own addresses, as from [`own`], given those that were recorded before (`known`). A new address is left out if it is not
/// the first of its subnet, as it may be virtual.
pub fn still_own(addresses: &[SavedAddress], known: &[SavedAddress]) -> Vec<SavedAddress> {
    let is_known = |a: &SavedAddress| known.iter().any(|b| b.is_same(a));
    let mut found = own(addresses, &[]);
    found.retain(|a| is_known(a) || !a.secondary);
    for address in &mut found {
        address.keep_label(known.iter().find(|b| b.is_same(address)));
    }
    // Known addresses keep their order.
    let place = |a: &SavedAddress| known.iter().position(|b| b.is_same(a)).unwrap_or(known.len());
    found.sort_by_key(place);
    found
}

/// Whether the prefix holds a single address.
fn is_alone(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SavedAddress {
        SavedAddress::for_test(text.parse().unwrap())
    }

    fn names(addresses: &[SavedAddress]) -> Vec<String> {
        addresses.iter().map(|a| a.address.addr().to_string()).collect()
    }

    #[test]
    fn an_address_without_a_subnet_beside_one_with_a_subnet_is_virtual() {
        let all = [address("10.0.0.5/24"), address("10.0.0.100/32"), address("fd00::5/64")];
        assert_eq!(names(&own(&all, &[])), ["10.0.0.5", "fd00::5"]);
        // Left behind on the uplink, it is not the node's there either.
        assert!(own(&all[1..2], &all[..1]).is_empty());
    }

    #[test]
    fn where_there_are_only_addresses_without_a_subnet_the_first_is_the_node_s() {
        let all = [address("10.0.0.5/32"), address("10.0.0.100/32")];
        assert_eq!(names(&own(&all, &[])), ["10.0.0.5"]);
        assert!(own(&all[1..], &all[..1]).is_empty());
    }

    #[test]
    fn what_keepalived_made_is_virtual_and_what_dhcp_made_is_not() {
        let vip = SavedAddress { moves: true, ..address("10.0.0.100/24") };
        let leased = SavedAddress { leased: true, ..address("fd00::9/128") };
        let all = [address("10.0.0.5/24"), vip, address("fd00::5/64"), leased];
        assert_eq!(names(&own(&all, &[])), ["10.0.0.5", "fd00::5", "fd00::9"]);
    }

    #[test]
    fn a_second_address_of_a_subnet_that_appears_later_may_be_virtual_and_a_new_subnet_is_not() {
        let known = [address("10.0.0.6/24"), address("10.0.0.5/24")];
        let second = |text| SavedAddress { secondary: true, ..address(text) };
        let all = [known[1].clone(), second("10.0.0.6/24"), second("10.0.0.100/24"), address("10.1.0.5/24")];
        assert_eq!(names(&still_own(&all, &known)), ["10.0.0.6", "10.0.0.5", "10.1.0.5"]);
    }
}
