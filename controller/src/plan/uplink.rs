//! The uplinks of a node's gateway router: a port of the router, and a switch between it and a physical network. Every gateway router has
//! one; where the node agent reports a second one, packets to external gateways of pods leave by that.

use api::annotation::{GatewayConfig, SecondUplink};
use api::{MacAddr, ovn_name};
use ipnet::IpNet;
use ovsdb_client::Datum;

use super::cluster;
use super::columns::map;
use super::{DesiredRow, Item, RowKey, Table};
use crate::index::Node;

/// The gateway router that the port of an uplink is on, by the port's name.
pub fn router_of(port: &str) -> Option<&str> {
    let second = port.strip_prefix(&ovn_name::of_second_uplink(""));
    let router = second.unwrap_or(port).strip_prefix("rtoe-")?;
    router.starts_with("GR_").then_some(router)
}

/// One uplink of a gateway router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink<'a> {
    /// Name of the router's port.
    pub router_port: String,
    /// Addresses of the router's port, which are the node's on the bridge.
    pub addresses: &'a [IpNet],
    mac: MacAddr,
    switch: String,
    /// The switch's port towards the router.
    switch_port: String,
    /// The switch's port towards the physical network.
    localnet: &'a str,
    physical_network: &'static str,
    vlan: Option<i64>,
}

impl<'a> Uplink<'a> {
    /// The uplink that every gateway router has.
    pub fn first(node: &str, gateway: &'a GatewayConfig) -> Self {
        Self {
            router_port: ovn_name::router_to_external(node),
            addresses: &gateway.ip_addresses,
            mac: gateway.mac_address,
            switch: ovn_name::external_switch(node),
            switch_port: ovn_name::external_to_router(node),
            localnet: &gateway.interface_id,
            physical_network: ovn_name::PHYSICAL_NETWORK,
            vlan: gateway.vlan_id.parse().ok().filter(|vlan| (1..4095).contains(vlan)),
        }
    }

    /// The second one.
    pub fn second(node: &str, second: &SecondUplink<'a>) -> Self {
        Self {
            router_port: ovn_name::of_second_uplink(&ovn_name::router_to_external(node)),
            addresses: second.addresses,
            mac: second.mac,
            switch: ovn_name::of_second_uplink(&ovn_name::external_switch(node)),
            switch_port: ovn_name::of_second_uplink(&ovn_name::external_to_router(node)),
            localnet: second.interface_id,
            physical_network: ovn_name::SECOND_PHYSICAL_NETWORK,
            vlan: None,
        }
    }

    /// The uplink to external gateways; none while the node has no gateway router.
    pub fn to_external_gateways(node: &'a Node) -> Option<Self> {
        let (Some(_), Some(gateway)) = (&node.chassis, &node.gateway) else { return None };
        let first = Self::first(&node.name, gateway);
        let second = gateway.second_uplink().map(|second| Self::second(&node.name, &second));
        (!first.addresses.is_empty()).then(|| second.unwrap_or(first))
    }

    /// Adds the rows.
    pub fn items(&self, router: &RowKey, items: &mut Vec<Item>) {
        let router_port = RowKey::new(Table::LogicalRouterPort, self.router_port.as_str());
        let mac = self.mac.to_string();
        items.push(
            DesiredRow::new(router_port.clone())
                .with("name", router_port.key.clone())
                .with("mac", mac.as_str())
                .with("networks", Datum::set(self.addresses.iter().map(ToString::to_string)))
                .with("external_ids", map([("gateway-physical-ip", "yes")]))
                .into(),
        );
        items.push(Item::link(router, "ports", &router_port));

        let switch = RowKey::new(Table::LogicalSwitch, self.switch.as_str());
        items.push(DesiredRow::new(switch.clone()).with("name", switch.key.clone()).into());
        let localnet = RowKey::new(Table::LogicalSwitchPort, self.localnet);
        items.push(
            DesiredRow::new(localnet.clone())
                .with("name", localnet.key.clone())
                .with("type", "localnet")
                .with("addresses", "unknown")
                .with("options", map([("network_name", self.physical_network)]))
                .with("tag_request", self.vlan)
                .into(),
        );
        items.push(Item::link(&switch, "ports", &localnet));

        let port = RowKey::new(Table::LogicalSwitchPort, self.switch_port.as_str());
        let options = [("nat-addresses", "router"), ("exclude-lb-vips-from-garp", "true")];
        items.push(cluster::router_side(&port, &router_port, &mac, &options).into());
        items.push(Item::link(&switch, "ports", &port));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::plan::fixture;

    fn node(second: bool) -> Node {
        let mut gateway = json!({"mode": "shared", "bridge-id": "b", "interface-id": "b_n1",
            "mac-address": "02:42:ac:12:00:02", "ip-addresses": ["172.18.0.2/16"], "next-hops": [],
            "node-port-enable": "true", "vlan-id": "7"});
        if second {
            gateway["exgw-interface-id"] = "brx_n1".into();
            gateway["exgw-mac-address"] = "02:42:ac:13:00:02".into();
            gateway["exgw-ip-addresses"] = json!(["172.19.0.2/16", "fd00:19::2/64"]);
        }
        fixture::node(gateway)
    }

    fn planned(uplink: &Uplink<'_>) -> BTreeMap<String, DesiredRow> {
        let mut items = Vec::new();
        uplink.items(&RowKey::new(Table::LogicalRouter, "GR_n1"), &mut items);
        let rows = items.into_iter().filter_map(|item| match item {
            Item::Row(row) => Some((format!("{} {}", row.key.table.name(), row.key.key), row)),
            Item::Edge(_) => None,
        });
        rows.collect()
    }

    #[test]
    fn the_second_uplink_has_rows_of_the_names_of_ovn_kubernetes_and_no_vlan() {
        let node = node(true);
        let second = Uplink::to_external_gateways(&node).unwrap();
        let rows = planned(&second);
        assert_eq!(
            rows.keys().collect::<Vec<_>>(),
            [
                "Logical_Router_Port exgw-rtoe-GR_n1",
                "Logical_Switch exgw-ext_n1",
                "Logical_Switch_Port brx_n1",
                "Logical_Switch_Port exgw-etor-GR_n1",
            ]
        );
        let column = |row: &str, column: &str| rows[row].columns[column].clone();
        let port = "Logical_Router_Port exgw-rtoe-GR_n1";
        assert_eq!(column(port, "networks"), Datum::set(["172.19.0.2/16", "fd00:19::2/64"]));
        assert_eq!(column(port, "mac"), "02:42:ac:13:00:02".into());
        let localnet = "Logical_Switch_Port brx_n1";
        assert_eq!(column(localnet, "options"), map([("network_name", "exgwphysnet")]));
        assert!(column(localnet, "tag_request").is_empty());
        let to_router = "Logical_Switch_Port exgw-etor-GR_n1";
        let options = map([
            ("router-port", "exgw-rtoe-GR_n1"),
            ("nat-addresses", "router"),
            ("exclude-lb-vips-from-garp", "true"),
        ]);
        assert_eq!(column(to_router, "options"), options);
        assert_eq!(column(to_router, "addresses"), "02:42:ac:13:00:02".into());
    }

    #[test]
    fn without_a_second_uplink_packets_to_external_gateways_leave_by_the_first() {
        let mut node = node(false);
        let first = Uplink::to_external_gateways(&node).unwrap();
        assert_eq!((first.router_port.as_str(), first.vlan), ("rtoe-GR_n1", Some(7)));
        node.chassis = None;
        assert_eq!(Uplink::to_external_gateways(&node), None);
    }

    #[test]
    fn ports_of_uplinks_name_their_router() {
        for port in ["rtoe-GR_n1", "exgw-rtoe-GR_n1"] {
            assert_eq!(router_of(port), Some("GR_n1"));
        }
        for port in ["rtos-n1", "exgw-rtoe-other", "rtoe-", "exgw-"] {
            assert_eq!(router_of(port), None);
        }
    }
}
