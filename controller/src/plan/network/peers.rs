//! The ways between virtual networks that are peers. An isolated network has a router of its own then, with the gateway's address on the
//! network; a routed one has the cluster router. For each peer the router has a port whose other side is a port of the peer's router, and
//! routes to the peer's ranges by it, so that a network reaches its peers and nothing behind them. Two routed networks reach each other
//! by the cluster router anyway.
//!
//! A port between routers has no network: its address is link-local, alone, and known to the other side from the rows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::{MacAddr, hash, ovn_name};
use ipnet::IpNet;
use ovsdb_client::Datum;

use super::super::columns::map;
use super::super::{DesiredRow, Item, RowKey, Table, key};
use super::marks;
use crate::index::Network;
use crate::index::network::Networks;

/// One side of a connection: a port of a router.
struct Side {
    port: String,
    ip: Ipv4Addr,
    mac: MacAddr,
}

impl Side {
    /// The side of a network with this switch towards the one with the other switch. Both sides' addresses differ; those of several
    /// ports of a router may be the same, as nothing is sent to them but by their ports.
    fn of(switch: &str, other: &str) -> Self {
        let (first, second) = if switch < other { (switch, other) } else { (other, switch) };
        let [high, low, ..] = hash::fnv1a(format!("{first}_{second}").as_bytes()).to_be_bytes();
        // 169.254.0 and 169.254.255 are reserved (RFC 3927, 2.1).
        let (third, fourth) = (1 + high % 254, (low & 0xfe) | u8::from(switch > other));
        let ip = Ipv4Addr::new(169, 254, third, fourth);
        Self { port: ovn_name::router_to_peer(switch, other), ip, mac: MacAddr::from_ip(ip.into()) }
    }

    /// The address of a family. OVN gives every router port the IPv6 one that follows from its MAC address (RFC 4291, appendix A).
    fn address(&self, is_v4: bool) -> IpAddr {
        if is_v4 {
            return self.ip.into();
        }
        let MacAddr([a, b, c, d, e, f]) = self.mac;
        let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        let words = [0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f)];
        Ipv6Addr::from(words).into()
    }
}

/// Connected peers of a network that need a router between the two.
pub(super) fn linked<'a>(network: &Network, networks: &'a Networks) -> Vec<&'a Network> {
    let mut connected = networks.connected(network);
    connected.retain(|peer| !(network.reach.is_routed() && peer.reach.is_routed()));
    connected
}

/// The router that leads from a network to its peers.
pub(super) fn router(network: &Network) -> String {
    if network.reach.is_routed() {
        ovn_name::CLUSTER_ROUTER.to_owned()
    } else {
        ovn_name::peers_router(&network.switch())
    }
}

/// The row of an isolated network's router.
pub(super) fn router_row(network: &Network) -> Item {
    let name = router(network);
    DesiredRow::new(RowKey::new(Table::LogicalRouter, name.clone()))
        .with("name", name)
        .with("external_ids", Datum::map(marks(network)))
        .into()
}

/// A network's side of the way to a peer.
pub(super) fn items(network: &Network, peer: &Network, items: &mut Vec<Item>) {
    let (switch, other) = (network.switch(), peer.switch());
    let (own, far) = (Side::of(&switch, &other), Side::of(&other, &switch));
    let name = router(network);
    let router = RowKey::new(Table::LogicalRouter, name.clone());
    let port = RowKey::new(Table::LogicalRouterPort, own.port.clone());
    items.push(Item::link(&router, "ports", &port));
    items.push(
        DesiredRow::new(port)
            .with("name", own.port.clone())
            .with("mac", own.mac.to_string())
            .with("networks", Datum::set([format!("{}/32", own.ip)]))
            .with("peer", far.port.clone())
            // Without routes in its table, what comes from there gets to the networks of the router alone.
            .with("options", map([("route_table", own.port.as_str())]))
            .with("external_ids", Datum::map(marks(network)))
            .into(),
    );
    let has =
        |net: &IpNet| network.subnets.iter().any(|own| own.net.addr().is_ipv4() == net.addr().is_ipv4());
    for net in peer.subnets.iter().map(|subnet| subnet.net).filter(has) {
        let (prefix, next_hop) = (net.to_string(), far.address(net.addr().is_ipv4()).to_string());
        // Only what comes from the network takes it.
        let content = key::static_route_content(&prefix, &next_hop, "", &own.port);
        let content = key::static_route_in_table_content(&content, &switch);
        let row = key::in_router(Table::LogicalRouterStaticRoute, &name, &content);
        items.push(Item::link(&router, "static_routes", &row));
        items.push(
            DesiredRow::new(row)
                .with("ip_prefix", prefix)
                .with("nexthop", next_hop)
                .with("output_port", own.port.clone())
                .with("route_table", switch.clone())
                .with("external_ids", Datum::map(marks(network)))
                .into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_sides_differ_and_stay_as_they_are() {
        let (one, two) = (Side::of("x.blue", "x.red"), Side::of("x.red", "x.blue"));
        assert_eq!((one.port.as_str(), two.port.as_str()), ("rtop-x.blue_x.red", "rtop-x.red_x.blue"));
        assert!(one.ip != two.ip && one.mac != two.mac);
        assert_eq!(one.ip.octets()[..3], two.ip.octets()[..3]);
        assert_eq!(one.ip, Side::of("x.blue", "x.red").ip);
        assert!(one.ip.is_link_local());
    }

    #[test]
    fn the_address_of_the_second_family_follows_from_the_mac_address() {
        let side = Side {
            port: String::new(),
            ip: Ipv4Addr::new(169, 254, 1, 2),
            mac: "0a:58:a9:fe:01:02".parse().unwrap(),
        };
        assert_eq!(side.address(false).to_string(), "fe80::858:a9ff:fefe:102");
        assert_eq!(side.address(true).to_string(), "169.254.1.2");
    }
}
