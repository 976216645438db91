//! Virtual networks: a switch that spans all nodes; where the network is routed, a port on the cluster router; where it reaches the
//! outside, routes and source NAT on every node's gateway router; where it is one of a physical network, a port to that; where it has peers,
//! a router to them; and the pods' ports.
//!
//! Packets of the network find the cluster's pods and the other routed networks by the routes of the cluster router's own ports. What
//! is for the outside takes a default route that only packets from the network's port use (a route table), to nobody; a policy on each
//! node sends what has taken it to that node's gateway router, which translates the source and gets the answers. There is no route by
//! several gateway routers: OVN chooses one of these by a group, of which the node agent cannot tell what it does, so that every
//! change of OVS's flows would end all of a node's cached flows.

mod peers;

use api::annotation::GatewayConfig;
use api::virtual_network::{Localnet, Reach};
use api::{addr, ovn_name};
use ipnet::IpNet;
use ovsdb_client::Datum;

use super::cluster;
use super::columns::map;
use super::pod::{Addresses, port_row};
use super::{DesiredRow, Item, RowKey, Table, gateway, key};
use crate::config::{Config, same_family};
use crate::index::network::Networks;
use crate::index::{Attached, Index, Network, Node, Pod};

/// The switch of a network.
pub fn switch_key(network: &Network) -> RowKey {
    RowKey::new(Table::LogicalSwitch, network.switch())
}

/// `external_ids` that mark a row as one of the network's.
fn marks(network: &Network) -> Vec<(&'static str, String)> {
    let name = network.name.to_string();
    vec![(ovn_name::key::NETWORK, name.clone()), (ovn_name::key::VIRTUAL_NETWORK, name)]
}

/// The items of a network that exist once.
pub fn items(network: &Network, networks: &Networks, config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    let switch = switch_key(network);
    let mut other_config = Vec::new();
    let mut gateways = Vec::new();
    for subnet in &network.subnets {
        match subnet.net {
            IpNet::V4(net) => other_config.push(("subnet", net.to_string())),
            IpNet::V6(net) => other_config.push(("ipv6_prefix", net.network().to_string())),
        }
        gateways.push(addr::with_prefix_of(subnet.gateway, &subnet.net));
    }
    let mut ids = marks(network);
    ids.push(("gateway_ip", gateways.join(",")));
    let row = DesiredRow::new(switch.clone()).with("name", switch.key.clone());
    items.push(
        row.with("other_config", Datum::map(other_config)).with("external_ids", Datum::map(ids)).into(),
    );
    if let Some(localnet) = &network.localnet {
        items.extend(localnet_port(network, localnet));
    }
    let linked = peers::linked(network, networks);
    if !network.reach.is_routed() {
        if linked.is_empty() {
            return items;
        }
        items.push(peers::router_row(network));
    }
    router_port(network, gateways, &mut items);
    for peer in linked {
        peers::items(network, peer, &mut items);
    }
    if network.reach == Reach::Outside {
        for subnet in &network.subnets {
            default_route(network, &subnet.net, config, &mut items);
        }
    }
    items
}

/// The network's port on its router, and the other side on its switch.
fn router_port(network: &Network, gateways: Vec<String>, items: &mut Vec<Item>) {
    let Some(mac) = network.router_mac() else { return };
    let switch = switch_key(network);
    let router = RowKey::new(Table::LogicalRouter, peers::router(network));
    let router_port = RowKey::new(Table::LogicalRouterPort, ovn_name::router_to_switch(&switch.key));
    // Without routes in its table, a network that does not reach the outside has none to it.
    let options = map([("route_table", switch.key.as_str())]);
    items.push(
        DesiredRow::new(router_port.clone())
            .with("name", router_port.key.clone())
            .with("mac", mac.to_string())
            .with("networks", Datum::set(gateways))
            .with("options", options)
            .with("external_ids", Datum::map(marks(network)))
            .into(),
    );
    items.push(Item::link(&router, "ports", &router_port));
    let switch_port = RowKey::new(Table::LogicalSwitchPort, ovn_name::switch_to_router(&switch.key));
    let row = cluster::router_side(&switch_port, &router_port, "router", &[]);
    items.push(row.with("external_ids", Datum::map(marks(network))).into());
    items.push(Item::link(&switch, "ports", &switch_port));
}

/// Priority of the policies that send packets to the gateway router of their node. Below the one for a node's own addresses.
const OUTSIDE_PRIORITY: i64 = 500;

/// The route by which packets for the outside are known. Nobody has the address of its next hop: without a policy of their node they
/// are lost.
fn default_route(network: &Network, net: &IpNet, config: &Config, items: &mut Vec<Item>) {
    // The last address of a join range is given to no node.
    let Some(nobody) = config.join(net.addr()).map(|join| join.broadcast()) else { return };
    let everything = if net.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let (nexthop, table) = (nobody.to_string(), network.switch());
    let row = key::static_route_in_table(ovn_name::CLUSTER_ROUTER, everything, &nexthop, &table);
    let router = RowKey::new(Table::LogicalRouter, ovn_name::CLUSTER_ROUTER);
    items.push(Item::link(&router, "static_routes", &row));
    items.push(
        DesiredRow::new(row)
            .with("ip_prefix", everything)
            .with("nexthop", nexthop)
            .with("route_table", table)
            .with("external_ids", Datum::map(marks(network)))
            .into(),
    );
}

/// The port by which packets of a network get to the physical network's bridge on the node where they are, and back. OVN sends nothing of
/// such a switch through tunnels. The name is that of ovn-kubernetes' ports of this kind.
fn localnet_port(network: &Network, localnet: &Localnet) -> [Item; 2] {
    let switch = switch_key(network);
    let port = RowKey::new(Table::LogicalSwitchPort, ovn_name::network_localnet_port(&switch.key));
    let vlan = localnet.vlan.map(i64::from);
    let row = DesiredRow::new(port.clone())
        .with("name", port.key.clone())
        .with("type", "localnet")
        .with("addresses", "unknown")
        .with("options", map([("network_name", localnet.physical_network.as_str())]))
        // ovn-northd copies the one to the other, and leaves the old one where the new one is empty.
        .with("tag_request", vlan)
        .with("tag", vlan)
        .with("external_ids", Datum::map(marks(network)));
    [row.into(), Item::link(&switch, "ports", &port)]
}

/// The items of a network on a node, once the node has a gateway router.
pub fn node_items(network: &Network, node: &Node, config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    let (Reach::Outside, Some(_), Some(gateway)) = (network.reach, &node.chassis, &node.gateway) else {
        return items;
    };
    for subnet in &network.subnets {
        routes(network, &subnet.net, node, config, &mut items);
        nat(network, &subnet.net, node, gateway, config, &mut items);
    }
    items
}

fn routes(network: &Network, net: &IpNet, node: &Node, config: &Config, items: &mut Vec<Item>) {
    let ids = || Datum::map(marks(network));
    let Some(join) = config.join(net.addr()) else { return };
    if let Some(cluster_router) = addr::join_of(&join, 1) {
        let name = ovn_name::gateway_router(&node.name);
        let row = gateway::route(&name, &net.to_string(), &cluster_router.to_string(), None, None, items);
        items.push(row.with("external_ids", ids()).into());
    }
    if let Some(gateway_router) = addr::join_of(&join, node.id) {
        // Packets of a pod are routed on the pod's own node, where the node's management port is, too.
        let family = if net.addr().is_ipv4() { "ip4" } else { "ip6" };
        let matching = format!(
            "inport == \"{}\" && outport == \"{}\" && {family} && is_chassis_resident(\"{}\") /* {} */",
            ovn_name::router_to_switch(&network.switch()),
            ovn_name::router_to_join(ovn_name::CLUSTER_ROUTER),
            ovn_name::management_port(&node.name),
            node.name
        );
        let row = key::policy(ovn_name::CLUSTER_ROUTER, OUTSIDE_PRIORITY, &matching);
        let router = RowKey::new(Table::LogicalRouter, ovn_name::CLUSTER_ROUTER);
        items.push(Item::link(&router, "policies", &row));
        items.push(
            DesiredRow::new(row)
                .with("priority", OUTSIDE_PRIORITY)
                .with("match", matching)
                .with("action", "reroute")
                .with("nexthops", gateway_router.to_string())
                .with("external_ids", ids())
                .into(),
        );
    }
}

fn nat(
    network: &Network,
    net: &IpNet,
    node: &Node,
    gateway: &GatewayConfig,
    config: &Config,
    items: &mut Vec<Item>,
) {
    let addresses = gateway.ip_addresses.iter().map(IpNet::addr);
    let Some(external) = addresses.into_iter().find(|ip| same_family(*ip, net.addr())) else { return };
    let name = ovn_name::gateway_router(&node.name);
    let row = gateway::snat(&name, external, net.to_string(), config.features.nat_port_range, items);
    items.push(row.with("external_ids", Datum::map(marks(network))).into());
}

/// The switch port of a pod on a network.
pub fn port_key(pod: &Pod, attached: &Attached) -> RowKey {
    let name = ovn_name::network_pod_port(&attached.key, &pod.name.namespace, &pod.name.name);
    RowKey::new(Table::LogicalSwitchPort, name)
}

/// The port of a pod on a network; none until the network is ready, is for the pod's namespace and has the pod's addresses.
pub fn port_items(index: &Index, pod: &Pod, node: &Node, attached: &Attached) -> Vec<Item> {
    let network = index.networks.ready.get(&attached.network);
    let may_have =
        |network: &&Network| network.serves(&pod.name.namespace) && network.holds(&attached.addresses);
    let Some(network) = network.filter(may_have) else { return Vec::new() };
    let port = port_key(pod, attached);
    let mut ids = marks(network);
    ids.push((ovn_name::key::NAD, attached.key.clone()));
    ids.push(("namespace", pod.name.namespace.clone()));
    ids.push(("pod", "true".to_owned()));
    let use_of = match attached.detect_duplicates {
        true => Addresses::AskedFor,
        false => Addresses::Own,
    };
    let row = port_row(&port, pod, node, attached.mac, &attached.addresses, use_of);
    vec![row.with("external_ids", Datum::map(ids)).into(), Item::link(&switch_key(network), "ports", &port)]
}

#[cfg(test)]
mod tests;
