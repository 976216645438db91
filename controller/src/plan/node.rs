//! A node's switch, its ports towards the cluster router, and its management port.

use api::addr;
use api::{MacAddr, ovn_name};
use ipnet::IpNet;
use ovsdb_client::Datum;

use super::cluster;
use super::columns::owner_ids;
use super::{DesiredRow, Item, RowKey, Table, gateway};
use crate::config::Config;
use crate::index::Node;

/// The items of a node. The parts that need the node agent's annotations are missing until the agent has written them.
pub fn items(node: &Node, config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    switch(node, config, &mut items);
    management_port(node, config, &mut items);
    gateway::items(node, config, &mut items);
    items
}

/// The switch of a node.
pub fn switch_key(node: &str) -> RowKey {
    RowKey::new(Table::LogicalSwitch, node)
}

fn switch(node: &Node, config: &Config, items: &mut Vec<Item>) {
    let switch = switch_key(&node.name);
    let mut other_config = Vec::new();
    for net in &node.subnets {
        match net {
            IpNet::V4(_) => other_config.push(("subnet", net.to_string())),
            IpNet::V6(_) => other_config.push(("ipv6_prefix", net.network().to_string())),
        }
    }
    let row = DesiredRow::new(switch.clone()).with("name", node.name.clone());
    items.push(row.with("other_config", Datum::map(other_config)).into());
    if config.features.load_balancer_group {
        for group in [ovn_name::CLUSTER_LB_GROUP, ovn_name::SWITCH_LB_GROUP] {
            items.push(Item::link(&switch, "load_balancer_group", &cluster::load_balancer_group(group)));
        }
    }

    // Without a chassis the router port would belong to no node, and every other node would treat the switch as its own: the port
    // is added together with its chassis.
    let Some(chassis) = &node.chassis else { return };
    let router = RowKey::new(Table::LogicalRouter, ovn_name::CLUSTER_ROUTER);
    let router_port = RowKey::new(Table::LogicalRouterPort, ovn_name::router_to_switch(&node.name));
    let gateways: Vec<_> =
        node.subnets.iter().filter_map(|net| Some((addr::gateway_of(net)?, net))).collect();
    let mac = gateways.first().map(|(ip, _)| MacAddr::from_ip(*ip)).unwrap_or_default();
    items.push(
        DesiredRow::new(router_port.clone())
            .with("name", router_port.key.clone())
            .with("mac", mac.to_string())
            .with("networks", Datum::set(gateways.iter().map(|(ip, net)| addr::with_prefix_of(*ip, net))))
            .with("options", cluster::gateway_mtu(node.gateway_mtu(config)))
            .into(),
    );
    items.push(Item::link(&router, "ports", &router_port));
    let name = ovn_name::gateway_chassis(&node.name, chassis);
    let row = RowKey::new(Table::GatewayChassis, name.clone());
    let desired = DesiredRow::new(row.clone()).with("name", name).with("chassis_name", chassis);
    items.push(desired.with("priority", 1).into());
    items.push(Item::link(&router_port, "gateway_chassis", &row));

    let switch_port = RowKey::new(Table::LogicalSwitchPort, ovn_name::switch_to_router(&node.name));
    items.push(cluster::router_side(&switch_port, &router_port, "router", &[]).into());
    items.push(Item::link(&switch, "ports", &switch_port));
}

fn management_port(node: &Node, config: &Config, items: &mut Vec<Item>) {
    let switch = switch_key(&node.name);
    let port = RowKey::new(Table::LogicalSwitchPort, ovn_name::management_port(&node.name));
    let ips: Vec<_> = node.subnets.iter().filter_map(addr::management_of).collect();
    let Some(first) = ips.first() else { return };
    let mut addresses = MacAddr::from_ip(*first).to_string();
    for ip in &ips {
        addresses.push_str(&format!(" {ip}"));
    }
    items.push(
        DesiredRow::new(port.clone()).with("name", port.key.clone()).with("addresses", addresses).into(),
    );
    items.push(Item::link(&switch, "ports", &port));
    items.push(Item::link(&cluster::cluster_port_group(), "ports", &port));

    // The node must reach its own pods whatever policies say (probes).
    for ip in ips {
        let text = ip.to_string();
        let id = ovn_name::owner_id("NetpolNode", &[&node.name, &text]);
        let acl = RowKey::new(Table::Acl, id.clone());
        let family = if ip.is_ipv4() { "ip4" } else { "ip6" };
        let mut row = DesiredRow::new(acl.clone())
            .with("action", "allow-related")
            .with("direction", "to-lport")
            .with("match", format!("{family}.src=={ip}"))
            .with("meter", ovn_name::ACL_METER)
            .with("priority", super::columns::ALLOW_PRIORITY)
            .with("external_ids", owner_ids(&id, "NetpolNode", &node.name, &[("ip", &text)]));
        if config.features.acl_tier {
            row = row.with("tier", super::columns::POLICY_TIER);
        }
        items.push(row.into());
        items.push(Item::link(&switch, "acls", &acl));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::{Config, Features};
    use crate::index::Node;
    use crate::plan::{Item, Table};

    #[test]
    fn router_ports_come_with_the_chassis_and_have_no_limit_where_ovs_segments_itself() {
        let config = Config {
            cluster_subnets: Vec::new(),
            service_cidrs: Vec::new(),
            join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
            masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
            mtu: 1400,
            host_network_namespace: None,
            default_network: true,
            features: Features::ALL,
        };
        let gateway = serde_json::json!({"mode": "shared", "bridge-id": "b", "interface-id": "b_n",
            "mac-address": "02:42:ac:12:00:02", "ip-addresses": ["172.18.0.2/16"], "next-hops": [],
            "node-port-enable": "true", "vlan-id": "0"});
        let count = |chassis: Option<&str>, table: Table| {
            let node = Node {
                name: "n1".to_owned(),
                id: 2,
                subnets: vec!["10.244.0.0/24".parse().unwrap()],
                addresses: Vec::new(),
                chassis: chassis.map(str::to_owned),
                gateway: None,
                gateway_unknown: false,
                host_cidrs: Vec::new(),
                userspace_tso: false,
                labels: BTreeMap::new(),
            };
            let items = super::items(&node, &config);
            items.iter().filter(|item| matches!(item, Item::Row(row) if row.key.table == table)).count()
        };
        for table in [Table::LogicalRouterPort, Table::GatewayChassis] {
            assert_eq!(
                (count(None, table), count(Some("c"), table)),
                (0, 1),
                "{table:?} without and with a chassis"
            );
        }
        let limited = |userspace_tso| {
            let node = Node {
                name: "n1".to_owned(),
                id: 2,
                subnets: vec!["10.244.0.0/24".parse().unwrap()],
                addresses: Vec::new(),
                chassis: Some("c".to_owned()),
                gateway: Some(serde_json::from_value(gateway.clone()).unwrap()),
                gateway_unknown: false,
                host_cidrs: Vec::new(),
                userspace_tso,
                labels: BTreeMap::new(),
            };
            let has_limit = |item: &Item| match item {
                Item::Row(row) => format!("{:?}", row.columns.get("options")).contains("gateway_mtu"),
                _ => false,
            };
            super::items(&node, &config).iter().filter(|item| has_limit(item)).count()
        };
        assert_eq!((limited(false), limited(true)), (2, 0));
    }
}
