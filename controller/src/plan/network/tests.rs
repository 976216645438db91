use std::collections::BTreeMap;

use api::virtual_network::{Scope, Subnet};
use api::{MacAddr, NamespacedName};
use serde_json::json;

use super::*;
use crate::index::convert;
use crate::plan::fixture::{self, config};
use crate::plan::{Member, plan};
use crate::unit::Unit;

fn node(name: &str, id: u32) -> Node {
    let gateway = json!({"mode": "shared", "bridge-id": "b", "interface-id": format!("b_{name}"),
        "mac-address": "02:42:ac:12:00:02", "ip-addresses": [format!("172.18.0.{id}/16"), format!("fd00:172:18::{id}/64")],
        "next-hops": [], "node-port-enable": "true", "vlan-id": "0"});
    Node {
        name: name.to_owned(),
        id,
        subnets: vec![format!("10.244.{id}.0/24").parse().unwrap()],
        chassis: Some(format!("chassis-{name}")),
        ..fixture::node(gateway)
    }
}

fn network(reach: Reach, nets: &[&str]) -> Network {
    let subnet = |net: &&str| {
        let net: IpNet = net.parse().unwrap();
        Subnet { net, gateway: addr::gateway_of(&net).unwrap(), excluded: Vec::new() }
    };
    Network {
        name: NamespacedName::new("shop", "ovn-ls-24"),
        created: 0,
        scope: Scope::Cluster,
        reach,
        subnets: nets.iter().map(subnet).collect(),
        mtu: 1400,
        mac_prefix: MacAddr::PREFIX,
        localnet: None,
        peers: Vec::new(),
        persistent: false,
    }
}

/// Key of each row, and the texts of its columns.
fn rows(items: &[Item]) -> BTreeMap<String, String> {
    let row = |item: &Item| match item {
        Item::Row(row) => {
            let columns = row.columns.iter().map(|(name, value)| format!("{name}={value:?}"));
            Some((format!("{} {}", row.key.table.name(), row.key.key), columns.collect::<Vec<_>>().join(" ")))
        }
        Item::Edge(_) => None,
    };
    items.iter().filter_map(row).collect()
}

fn edges(items: &[Item]) -> Vec<String> {
    let edge = |item: &Item| match item {
        Item::Edge(edge) => match &edge.member {
            Member::Row(row) => Some(format!("{} {} {}", edge.owner.key, edge.column, row.key)),
            Member::Text(_) => None,
        },
        Item::Row(_) => None,
    };
    items.iter().filter_map(edge).collect()
}

#[test]
fn an_isolated_network_is_a_switch_and_nothing_else() {
    let items = items(
        &network(Reach::Isolated, &["172.16.24.0/24", "fd00:24::/64"]),
        &Networks::default(),
        &config(),
    );
    let rows = rows(&items);
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["Logical_Switch ovn-ls-24"]);
    let columns = &rows["Logical_Switch ovn-ls-24"];
    for part in
        ["172.16.24.0/24", "fd00:24::", "172.16.24.1/24,fd00:24::1/64", "shop/ovn-ls-24", "gateway_ip"]
    {
        assert!(columns.contains(part), "{part}: {columns}");
    }
    assert!(edges(&items).is_empty());
    assert!(node_items(&network(Reach::Isolated, &["172.16.24.0/24"]), &node("n1", 2), &config()).is_empty());
}

#[test]
fn a_network_of_a_vlan_has_a_port_to_the_physical_network_and_none_on_a_router() {
    let localnet = |vlan| Some(Localnet { physical_network: "dc".to_owned(), vlan });
    let tagged = Network { localnet: localnet(Some(100)), ..network(Reach::Localnet, &["172.16.24.0/24"]) };
    let made = items(&tagged, &Networks::default(), &config());
    assert_eq!(edges(&made), ["ovn-ls-24 ports ovn-ls-24_ovn_localnet_port"]);
    let rows = rows(&made);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let port = &rows["Logical_Switch_Port ovn-ls-24_ovn_localnet_port"];
    for part in
        ["localnet", "unknown", "network_name", "dc", "tag_request", "100", "slipstream.dev/virtual-network"]
    {
        assert!(port.contains(part), "{part}: {port}");
    }
    let plain = Network { localnet: localnet(None), ..tagged.clone() };
    let without = self::rows(&items(&plain, &Networks::default(), &config()));
    assert!(!without["Logical_Switch_Port ovn-ls-24_ovn_localnet_port"].contains("100"), "{without:?}");
    assert!(node_items(&tagged, &node("n1", 2), &config()).is_empty());
}

#[test]
fn a_routed_network_has_a_port_on_the_cluster_router_as_the_published_commands_make_it() {
    let items = items(&network(Reach::ClusterRouter, &["172.16.24.0/24"]), &Networks::default(), &config());
    assert_eq!(edges(&items), ["ovn_cluster_router ports rtos-ovn-ls-24", "ovn-ls-24 ports stor-ovn-ls-24"]);
    let rows = rows(&items);
    let port = &rows["Logical_Router_Port rtos-ovn-ls-24"];
    for part in ["0a:58:ac:10:18:01", "172.16.24.1/24", "route_table"] {
        assert!(port.contains(part), "{part}: {port}");
    }
    assert!(rows["Logical_Switch_Port stor-ovn-ls-24"].contains("rtos-ovn-ls-24"));
    let none = node_items(&network(Reach::ClusterRouter, &["172.16.24.0/24"]), &node("n1", 2), &config());
    assert!(none.is_empty(), "only what reaches the outside has something on nodes");
}

#[test]
fn a_network_that_reaches_the_outside_leaves_each_node_by_its_own_gateway_router() {
    let network = network(Reach::Outside, &["172.16.24.0/24", "fd00:24::/64"]);
    let items = node_items(&network, &node("n1", 2), &config());
    let rows = rows(&items);
    assert_eq!(
        rows.keys().map(String::as_str).collect::<Vec<_>>(),
        [
            "Logical_Router_Policy ovn_cluster_router|500 inport == \"rtos-ovn-ls-24\" && outport == \"rtoj-ovn_cluster_router\" && ip4 && is_chassis_resident(\"k8s-n1\") /* n1 */",
            "Logical_Router_Policy ovn_cluster_router|500 inport == \"rtos-ovn-ls-24\" && outport == \"rtoj-ovn_cluster_router\" && ip6 && is_chassis_resident(\"k8s-n1\") /* n1 */",
            "Logical_Router_Static_Route GR_n1|172.16.24.0/24 via 100.64.0.1  ",
            "Logical_Router_Static_Route GR_n1|fd00:24::/64 via fd98::1  ",
            "NAT GR_n1|snat 172.18.0.2 172.16.24.0/24",
            "NAT GR_n1|snat fd00:172:18::2 fd00:24::/64",
        ]
    );
    assert!(rows.values().all(|columns| columns.contains("slipstream.dev/virtual-network")), "{rows:?}");
    assert_eq!(edges(&items).len(), rows.len());
    let without = Node { gateway: None, ..node("n1", 2) };
    assert!(node_items(&network, &without, &config()).is_empty());
    // What no node's policy takes has a next hop that nobody is.
    let routes: Vec<String> = self::rows(&super::items(&network, &Networks::default(), &config()))
        .into_keys()
        .filter(|row| row.contains("Static_Route"))
        .collect();
    assert_eq!(
        routes,
        [
            "Logical_Router_Static_Route ovn_cluster_router|0.0.0.0/0 via 100.64.255.255   table ovn-ls-24",
            "Logical_Router_Static_Route ovn_cluster_router|::/0 via fd98::ffff:ffff:ffff:ffff   table ovn-ls-24",
        ]
    );
}

fn pod(attachments: Vec<Attached>) -> Pod {
    let object = json!({"metadata": {"name": "a", "namespace": "shop", "uid": "u1"},
        "spec": {"nodeName": "n1", "containers": []}});
    let mut pod = convert::pod(serde_json::from_value(object).unwrap()).unwrap().pod;
    pod.addresses = vec!["10.244.2.3/24".parse().unwrap()];
    pod.mac = Some(MacAddr::from_ip(pod.addresses[0].addr()));
    pod.attachments = attachments;
    pod
}

fn attached(address: &str) -> Attached {
    let address: IpNet = address.parse().unwrap();
    Attached {
        key: "shop/ovn-ls-24/net2".to_owned(),
        network: NamespacedName::new("shop", "ovn-ls-24"),
        interface: "net2".to_owned(),
        addresses: vec![address],
        mac: MacAddr::from_ip(address.addr()),
        default_gateways: Vec::new(),
        routes: Vec::new(),
        mtu: 1400,
        detect_duplicates: false,
    }
}

#[test]
fn a_pods_port_is_on_the_networks_switch_bound_to_the_pods_node() {
    let mut index = Index::new(Vec::new());
    index.apply_node(node("n1", 2));
    index.apply_network(network(Reach::Isolated, &["172.16.24.0/24"]));
    let unit = Unit::Pod(NamespacedName::new("shop", "a"));
    index.apply_pod(pod(vec![attached("172.16.24.55/24")]));
    let items = plan(&index, &config(), &unit);
    let name = "shop.ovn-ls-24.net2_shop_a";
    assert!(edges(&items).contains(&format!("ovn-ls-24 ports {name}")), "{:?}", edges(&items));
    let port = &rows(&items)[&format!("Logical_Switch_Port {name}")];
    for part in ["0a:58:ac:10:18:37 172.16.24.55", "port_security", "chassis-n1", "u1", "shop/ovn-ls-24/net2"]
    {
        assert!(port.contains(part), "{part}: {port}");
    }
    // The pod's own port is as it is without the other.
    let with = rows(&items)["Logical_Switch_Port shop_a"].clone();
    index.apply_pod(pod(Vec::new()));
    let without = plan(&index, &config(), &unit);
    assert_eq!(rows(&without)["Logical_Switch_Port shop_a"], with);
    assert_eq!(rows(&without).len(), 1);
}

#[test]
fn a_port_whose_addresses_others_may_have_may_ask_for_them_and_is_not_announced() {
    let mut index = Index::new(Vec::new());
    index.apply_node(node("n1", 2));
    index.apply_network(network(Reach::Isolated, &["172.16.24.0/24", "fd00:24::/64"]));
    let mut row = |address: &str, detect_duplicates| {
        index.apply_pod(pod(vec![Attached { detect_duplicates, ..attached(address) }]));
        let items = plan(&index, &config(), &Unit::Pod(NamespacedName::new("shop", "a")));
        rows(&items)["Logical_Switch_Port shop.ovn-ls-24.net2_shop_a"].clone()
    };
    let plain = row("172.16.24.55/24", false);
    assert!(!plain.contains("disable_garp_rarp") && !plain.contains("0.0.0.0"), "{plain}");
    let asking = row("172.16.24.55/24", true);
    assert!(asking.contains("disable_garp_rarp"), "{asking}");
    assert_eq!(asking.matches("0.0.0.0").count(), 1, "as a sender alone, no address of the port: {asking}");
    let six = row("fd00:24::55/64", true);
    assert!(six.contains("disable_garp_rarp") && !six.contains("0.0.0.0"), "{six}");
}

#[test]
fn a_port_is_there_only_with_its_network_and_an_address_of_it() {
    let mut index = Index::new(Vec::new());
    index.apply_node(node("n1", 2));
    index.apply_pod(pod(vec![attached("172.16.24.55/24")]));
    let unit = Unit::Pod(NamespacedName::new("shop", "a"));
    let count = |index: &Index| rows(&plan(index, &config(), &unit)).len();
    assert_eq!(count(&index), 1);
    index.apply_network(network(Reach::Isolated, &["172.16.25.0/24"]));
    assert_eq!(count(&index), 1, "made again with another range");
    index.apply_network(network(Reach::Isolated, &["172.16.24.0/24"]));
    assert_eq!(count(&index), 2);
    let of_others = NamespacedName::new("other", "blue");
    let others = Network {
        name: of_others.clone(),
        scope: Scope::Namespace,
        ..network(Reach::Isolated, &["172.16.24.0/24"])
    };
    index.apply_network(others);
    index.apply_pod(pod(vec![Attached { network: of_others, ..attached("172.16.24.55/24") }]));
    assert_eq!(count(&index), 1, "another namespace's own");
}

#[test]
fn nothing_else_looks_at_a_pods_further_addresses() {
    let mut index = Index::new(vec!["10.244.0.0/16".parse().unwrap()]);
    index.apply_node(node("n1", 2));
    index.apply_network(network(Reach::Outside, &["172.16.24.0/24"]));
    let other = |items: Vec<Item>| format!("{items:?}");
    let mut plain = pod(Vec::new());
    plain.ports = vec![crate::index::ContainerPort {
        name: None,
        port: 80,
        protocol: api::Protocol::Tcp,
        host_port: Some(8080),
        host_ip: None,
    }];
    let with = Pod { attachments: vec![attached("172.16.24.55/24")], ..plain.clone() };
    let units = [Unit::HostPorts("n1".to_owned()), Unit::Node("n1".to_owned()), Unit::Cluster];
    index.apply_pod(plain);
    let before: Vec<_> = units.iter().map(|unit| other(plan(&index, &config(), unit))).collect();
    let dirty = index.apply_pod(with);
    assert_eq!(dirty.into_iter().collect::<Vec<_>>(), [Unit::Pod(NamespacedName::new("shop", "a"))]);
    let after: Vec<_> = units.iter().map(|unit| other(plan(&index, &config(), unit))).collect();
    assert_eq!(before, after);
    let pod = &index.pods[&NamespacedName::new("shop", "a")];
    assert_eq!(
        crate::index::policy::peer_addresses(pod),
        ["10.244.2.3".parse::<std::net::IpAddr>().unwrap()]
    );
}
