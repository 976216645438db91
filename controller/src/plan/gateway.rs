//! A node's gateway router with its uplinks, and the routes and policies that lead to it.

use std::net::IpAddr;

use api::annotation::{GatewayConfig, GatewayMode};
use api::{MacAddr, addr, ovn_name};
use ipnet::IpNet;

use super::cluster;
use super::columns::map;
use super::uplink::Uplink;
use super::{DesiredRow, Item, RowKey, Table, key};
use crate::config::{Config, same_family};
use crate::index::Node;

/// Source ports of the node's own address that OVN may use: what Linux uses for outgoing connections by default
/// (`net.ipv4.ip_local_port_range`), so that it stays clear of NodePorts.
const SNAT_PORTS: &str = "32768-60999";
/// Priority of the policies that send packets for the node's own addresses to its management port.
pub const OWN_NODE_PRIORITY: i64 = 1004;
/// Key of `external_ids` that marks the route to the masquerade range: ovn-kubernetes takes the key of the annotation.
pub const MASQUERADE_MARK: &str = api::annotation::NODE_MASQUERADE_SUBNET;

/// Adds the gateway half of a node, once the node agent has reported chassis and gateway configuration.
pub fn items(node: &Node, config: &Config, items: &mut Vec<Item>) {
    let (Some(chassis), Some(gateway)) = (&node.chassis, &node.gateway) else { return };
    own_node_policies(node, gateway, items);
    if gateway.ip_addresses.is_empty() {
        return;
    }
    router(node, chassis, gateway, config, items);
    routes(node, gateway, config, items);
    nat(node, gateway, config, items);
    mac_bindings(node, config, items);
}

fn router(node: &Node, chassis: &str, gateway: &GatewayConfig, config: &Config, items: &mut Vec<Item>) {
    let name = ovn_name::gateway_router(&node.name);
    let router = RowKey::new(Table::LogicalRouter, name.clone());
    let ips: Vec<String> = gateway.ip_addresses.iter().map(|net| net.addr().to_string()).collect();
    let options = map([
        ("chassis", chassis),
        ("always_learn_from_arp_request", "false"),
        ("dynamic_neigh_routers", "true"),
        ("lb_force_snat_ip", "router_ip"),
        ("mac_binding_age_threshold", "300"),
        ("snat-ct-zone", "0"),
    ]);
    items.push(
        DesiredRow::new(router.clone())
            .with("name", name)
            .with("external_ids", map([("physical_ip", &ips[0]), ("physical_ips", &ips.join(","))]))
            .with("options", options)
            .into(),
    );
    if config.features.copp {
        items.push(Item::link(&router, "copp", &cluster::copp()));
    }
    if config.features.load_balancer_group {
        let router_group = (gateway.node_port_enable == "true").then_some(ovn_name::ROUTER_LB_GROUP);
        for group in [Some(ovn_name::CLUSTER_LB_GROUP), router_group].into_iter().flatten() {
            items.push(Item::link(&router, "load_balancer_group", &cluster::load_balancer_group(group)));
        }
    }
    cluster::join_ports(config, &router, node.id, node.gateway_mtu(config), items);
    Uplink::first(&node.name, gateway).items(&router, items);
    if let Some(second) = gateway.second_uplink() {
        Uplink::second(&node.name, &second).items(&router, items);
    }
}

/// A static route with its edge.
pub(super) fn route(
    router: &str,
    prefix: &str,
    nexthop: &str,
    policy: Option<&str>,
    port: Option<&str>,
    items: &mut Vec<Item>,
) -> DesiredRow {
    let row = key::static_route(router, prefix, nexthop, policy, port);
    items.push(Item::link(&RowKey::new(Table::LogicalRouter, router), "static_routes", &row));
    DesiredRow::new(row)
        .with("ip_prefix", prefix)
        .with("nexthop", nexthop)
        .with("policy", policy)
        .with("output_port", port)
}

fn routes(node: &Node, gateway: &GatewayConfig, config: &Config, items: &mut Vec<Item>) {
    let name = ovn_name::gateway_router(&node.name);
    let out = ovn_name::router_to_external(&node.name);
    let mut rows = Vec::new();
    for subnet in &config.cluster_subnets {
        if let Some(cluster_router) = config.join(subnet.cidr.addr()).and_then(|join| addr::join_of(&join, 1))
        {
            rows.push(route(&name, &subnet.cidr.to_string(), &cluster_router.to_string(), None, None, items));
        }
    }
    for family in config.families() {
        if let (Some(net), Some(addresses)) = (config.masquerade_subnet(family), config.masquerade(family)) {
            let row =
                route(&name, &net.to_string(), &addresses.next_hop.to_string(), None, Some(&out), items);
            rows.push(row.with("external_ids", map([(MASQUERADE_MARK, "")])));
        }
    }
    for next_hop in &gateway.next_hops {
        let everything = if next_hop.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        rows.push(route(&name, everything, &next_hop.to_string(), None, Some(&out), items));
    }
    // On the cluster router: traffic of the node's pods leaves by the node's own gateway router, or in mode local by the node's
    // management port.
    for join in config.join_addresses(node.id) {
        let ip = join.addr().to_string();
        rows.push(route(ovn_name::CLUSTER_ROUTER, &ip, &ip, None, None, items));
        for subnet in node.subnets.iter().filter(|net| same_family(net.addr(), join.addr())) {
            let way_out = match gateway.mode {
                GatewayMode::Shared => Some(join.addr()),
                GatewayMode::Local => addr::management_of(subnet),
            };
            let (Some(way_out), subnet) = (way_out, subnet.to_string()) else { continue };
            let policy = Some("src-ip");
            rows.push(route(ovn_name::CLUSTER_ROUTER, &subnet, &way_out.to_string(), policy, None, items));
        }
    }
    items.extend(rows.into_iter().map(Item::from));
}

fn nat(node: &Node, gateway: &GatewayConfig, config: &Config, items: &mut Vec<Item>) {
    let name = ovn_name::gateway_router(&node.name);
    let clusters = config.cluster_subnets.iter().map(|subnet| (subnet.cidr.addr(), subnet.cidr.to_string()));
    let joins = config.join_addresses(node.id).into_iter().map(|net| (net.addr(), net.addr().to_string()));
    let by_node = clusters.chain(joins).filter_map(|(family, logical)| {
        let external = gateway.ip_addresses.iter().map(IpNet::addr).find(|ip| same_family(*ip, family))?;
        Some((external, logical, config.features.nat_port_range))
    });
    // The node's own connections to services have the router's join address as source behind it. Load balancing translates the
    // first packet and answered ones; OVS's userspace datapath translates a second packet before load balancing sees it.
    let of_host = config.join_addresses(node.id).into_iter().filter_map(|join| {
        let host = config.masquerade(join.addr())?.host;
        Some((join.addr(), below_load_balancing(host), false))
    });
    for (external, logical, range) in by_node.chain(of_host) {
        let row = snat(&name, external, logical, range, items);
        items.push(row.into());
    }
}

/// A row of source NAT of `router` with its edge. `range`: source ports are those of outgoing connections.
pub(super) fn snat(
    router: &str,
    external: IpAddr,
    logical: String,
    range: bool,
    items: &mut Vec<Item>,
) -> DesiredRow {
    let row = key::nat(router, "snat", external, &logical);
    items.push(Item::link(&RowKey::new(Table::LogicalRouter, router), "nat", &row));
    let desired = DesiredRow::new(row)
        .with("type", "snat")
        .with("external_ip", external.to_string())
        .with("logical_ip", logical)
        .with("options", map([("stateless", "false")]));
    if range { desired.with("external_port_range", SNAT_PORTS) } else { desired }
}

/// The longest IPv6 prefix whose source NAT gives way to that of load balancing. OVN's priorities of source NAT are the length and 1
/// more; that of `lb_force_snat_ip` is 110 (ovn-northd(8), "Egress Table 3: SNAT").
const BELOW_LOAD_BALANCING: u8 = 108;

/// The source of a row of source NAT for one address of the masquerade range, which must not go before load balancing's: that one has the
/// router's address on the side where the packet leaves, and the other only one that is unknown outside.
fn below_load_balancing(ip: IpAddr) -> String {
    let net = match ip {
        IpAddr::V4(_) => IpNet::from(ip),
        IpAddr::V6(_) => IpNet::new(ip, BELOW_LOAD_BALANCING).map_or(IpNet::from(ip), |net| net.trunc()),
    };
    if net.prefix_len() == net.max_prefix_len() { ip.to_string() } else { net.to_string() }
}

/// Packets of the node's pods to the node's own addresses go to the management port, keeping their source.
fn own_node_policies(node: &Node, gateway: &GatewayConfig, items: &mut Vec<Item>) {
    let router = RowKey::new(Table::LogicalRouter, ovn_name::CLUSTER_ROUTER);
    let mut ips: Vec<_> = gateway.ip_addresses.iter().chain(&node.host_cidrs).map(IpNet::addr).collect();
    ips.sort();
    ips.dedup();
    for ip in ips {
        let management =
            node.subnets.iter().filter(|net| same_family(net.addr(), ip)).find_map(addr::management_of);
        let Some(management) = management else { continue };
        let family = if ip.is_ipv4() { "ip4" } else { "ip6" };
        let port = ovn_name::router_to_switch(&node.name);
        let matching = format!("inport == \"{port}\" && {family}.dst == {ip} /* {} */", node.name);
        let row = key::policy(ovn_name::CLUSTER_ROUTER, OWN_NODE_PRIORITY, &matching);
        items.push(
            DesiredRow::new(row.clone())
                .with("priority", OWN_NODE_PRIORITY)
                .with("match", matching)
                .with("action", "reroute")
                .with("nexthops", management.to_string())
                .into(),
        );
        items.push(Item::link(&router, "policies", &row));
    }
}

/// The next hop towards the masquerade range represents the host and never answers ARP.
fn mac_bindings(node: &Node, config: &Config, items: &mut Vec<Item>) {
    if !config.features.static_mac_binding {
        return;
    }
    let port = ovn_name::router_to_external(&node.name);
    for addresses in config.families().into_iter().filter_map(|family| config.masquerade(family)) {
        let ip = addresses.next_hop;
        items.push(
            DesiredRow::new(key::mac_binding(&port, ip))
                .with("logical_port", port.clone())
                .with("ip", ip.to_string())
                .with("mac", MacAddr::from_ip(ip).to_string())
                .with("override_dynamic_mac", true)
                .into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixture;

    #[test]
    fn source_nat_of_the_nodes_own_connections_gives_way_to_load_balancing_in_both_families() {
        let config = fixture::config();
        let gateway = serde_json::json!({"mode": "shared", "bridge-id": "b", "interface-id": "b_n",
            "mac-address": "02:42:ac:12:00:02", "ip-addresses": ["172.18.0.2/16", "fd00:172:18::2/64"], "next-hops": [],
            "node-port-enable": "true", "vlan-id": "0"});
        let node = fixture::node(gateway);
        let mut made = Vec::new();
        items(&node, &config, &mut made);
        let nats: Vec<&str> = made
            .iter()
            .filter_map(|item| match item {
                Item::Row(row) if row.key.table == Table::Nat => Some(row.key.key.as_str()),
                _ => None,
            })
            .collect();
        let of = |source: &str| nats.iter().filter(|key| key.contains(source)).count();
        assert_eq!((of("169.254.169.2"), of("fd69::/108")), (1, 1), "{nats:?}");
        assert_eq!(of("fd69::2"), 0, "129 goes before 110: {nats:?}");
    }
}
