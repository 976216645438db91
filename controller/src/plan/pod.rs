//! A pod's switch port.

use std::net::Ipv4Addr;

use api::{MacAddr, ovn_name};
use ipnet::IpNet;
use ovsdb_client::Datum;

use super::columns::map;
use super::{DesiredRow, Item, RowKey, Table, node};
use crate::index::{Index, Node, Pod};

/// The switch port of a pod.
pub fn port_key(pod: &Pod) -> RowKey {
    RowKey::new(Table::LogicalSwitchPort, ovn_name::pod_port(&pod.name.namespace, &pod.name.name))
}

/// The items of a pod; none for host-network pods and until it has an address.
pub fn items(index: &Index, pod: &Pod) -> Vec<Item> {
    let (false, Some(mac), false) = (pod.host_network, pod.mac, pod.addresses.is_empty()) else {
        return Vec::new();
    };
    let Some(node) = index.nodes.get(&pod.node) else { return Vec::new() };
    let port = port_key(pod);
    let ids = map([("namespace", &pod.name.namespace), ("pod", "true")]);
    let row = port_row(&port, pod, node, mac, &pod.addresses).with("external_ids", ids);
    vec![row.into(), Item::link(&node::switch_key(&pod.node), "ports", &port)]
}

/// A port of a pod with these addresses, without its marks.
pub(super) fn port_row(
    port: &RowKey,
    pod: &Pod,
    node: &Node,
    mac: MacAddr,
    addresses: &[IpNet],
) -> DesiredRow {
    row_with(port, pod, node, &port_address(mac, addresses), Vec::new())
}

/// The row of [`port_row`] for a port whose pod asks on the network whether others use its addresses before it has them, and tells the
/// network when it has.
pub(super) fn asking_port_row(
    port: &RowKey,
    pod: &Pod,
    node: &Node,
    mac: MacAddr,
    addresses: &[IpNet],
) -> DesiredRow {
    let address = port_address(mac, addresses);
    // ovn-controller would tell the network as soon as the port is there.
    let row = row_with(port, pod, node, &address, vec![("disable_garp_rarp", "true")]);
    // An ARP probe has no sender address (RFC 5227, 2.1.1), and a port with an IPv4 address may send ARP from that one alone.
    match addresses.iter().any(|net| net.addr().is_ipv4()) {
        true => row.with("port_security", format!("{address} {}", Ipv4Addr::UNSPECIFIED)),
        false => row,
    }
}

fn port_address(mac: MacAddr, addresses: &[IpNet]) -> String {
    let mut address = mac.to_string();
    for net in addresses {
        address.push_str(&format!(" {}", net.addr()));
    }
    address
}

fn row_with<'a>(
    port: &RowKey,
    pod: &'a Pod,
    node: &'a Node,
    address: &str,
    mut options: Vec<(&'static str, &'a str)>,
) -> DesiredRow {
    options.push(("iface-id-ver", pod.uid.as_str()));
    if let Some(chassis) = &node.chassis {
        options.push(("requested-chassis", chassis));
    }
    DesiredRow::new(port.clone())
        .with("name", port.key.clone())
        .with("addresses", address)
        .with("port_security", address)
        .with("options", Datum::map(options))
}
