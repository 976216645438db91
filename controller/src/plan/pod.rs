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
    let row = port_row(&port, pod, node, mac, &pod.addresses, Addresses::Own).with("external_ids", ids);
    vec![row.into(), Item::link(&node::switch_key(&pod.node), "ports", &port)]
}

/// Whether a pod may use its addresses as soon as its port is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    Own,
    /// The pod asks on the network first whether others use them, and tells the network when it has them.
    AskedFor,
}

/// A port of a pod with these addresses, without its marks.
pub(super) fn port_row(
    port: &RowKey,
    pod: &Pod,
    node: &Node,
    mac: MacAddr,
    addresses: &[IpNet],
    use_of: Addresses,
) -> DesiredRow {
    let mut address = mac.to_string();
    for net in addresses {
        address.push_str(&format!(" {}", net.addr()));
    }
    let asks = use_of == Addresses::AskedFor;
    // An ARP probe has no sender address (RFC 5227, 2.1.1), and a port with an IPv4 address may send ARP from that one alone.
    let security = match asks && addresses.iter().any(|net| net.addr().is_ipv4()) {
        true => format!("{address} {}", Ipv4Addr::UNSPECIFIED),
        false => address.clone(),
    };
    let mut options = vec![("iface-id-ver", pod.uid.as_str())];
    // ovn-controller would tell the network as soon as the port is there.
    options.extend(asks.then_some(("disable_garp_rarp", "true")));
    options.extend(node.chassis.as_deref().map(|chassis| ("requested-chassis", chassis)));
    DesiredRow::new(port.clone())
        .with("name", port.key.clone())
        .with("addresses", address)
        .with("port_security", security)
        .with("options", Datum::map(options))
}
