use serde_json::json;

use super::*;
use crate::config::Features;
use crate::index::{Namespace, convert};
use crate::plan::fixture::{self, config};
use crate::plan::plan;
use crate::unit::Unit;
use api::NamespacedName;

/// A node; `second`: the addresses of its second uplink.
fn node(mode: &str, second: &[&str]) -> Node {
    let mut gateway = json!({"mode": mode, "bridge-id": "b", "interface-id": "b_n1", "mac-address": "02:42:ac:12:00:02",
        "ip-addresses": ["172.18.0.2/16", "fd00:172:18::2/64"], "next-hops": [], "node-port-enable": "true", "vlan-id": "0"});
    if !second.is_empty() {
        gateway["exgw-interface-id"] = "brx_n1".into();
        gateway["exgw-mac-address"] = "02:42:ac:13:00:02".into();
        gateway["exgw-ip-addresses"] = json!(second);
    }
    fixture::node(gateway)
}

fn pod(name: &str, last: u8, host_network: bool) -> Pod {
    let object = json!({"metadata": {"name": name, "namespace": "x", "uid": name},
        "spec": {"nodeName": "n1", "hostNetwork": host_network, "containers": []}});
    let mut pod = convert::pod(serde_json::from_value(object).unwrap()).unwrap().pod;
    if !host_network {
        pod.addresses = vec![
            format!("10.244.0.{last}/24").parse().unwrap(),
            format!("fd00:10:244::{last}/64").parse().unwrap(),
        ];
        pod.mac = Some(api::MacAddr::from_ip(pod.addresses[0].addr()));
    }
    pod
}

fn namespace(gateways: &[&str], bfd: bool) -> Namespace {
    let ips = gateways.iter().map(|ip| ip.parse().unwrap()).collect();
    Namespace {
        name: "x".to_owned(),
        external_gateways: ExternalGateways { ips, bfd },
        ..Namespace::default()
    }
}

fn index(node: Node, gateways: &[&str], bfd: bool) -> Index {
    let mut index = Index::default();
    index.apply_node(node);
    index.apply_namespace(namespace(gateways, bfd));
    index.apply_pod(pod("a", 3, false));
    index.apply_pod(pod("host", 0, true));
    index
}

fn unit(pod: &str) -> Unit {
    Unit::Pod(NamespacedName::new("x", pod))
}

fn rows(index: &Index, unit: &Unit, table: Table) -> Vec<DesiredRow> {
    let items = plan(index, &config(), unit).into_iter();
    let rows = items.filter_map(|item| if let Item::Row(row) = item { Some(row) } else { None });
    rows.filter(|row| row.key.table == table).collect()
}

fn keys(index: &Index, unit: &Unit, table: Table) -> Vec<String> {
    rows(index, unit, table).into_iter().map(|row| row.key.key.to_string()).collect()
}

fn routes(index: &Index, pod: &str) -> Vec<String> {
    let mut routes = keys(index, &unit(pod), Table::LogicalRouterStaticRoute);
    routes.retain(|route| route.contains("src-ip"));
    routes
}

#[test]
fn a_pod_has_a_route_to_each_gateway_of_its_families_by_the_second_uplink() {
    let both = ["172.19.0.1", "172.19.0.9", "fd00:19::1"];
    let index = index(node("shared", &["172.19.0.2/16", "fd00:19::2/64"]), &both, false);
    assert_eq!(
        routes(&index, "a"),
        [
            "GR_n1|10.244.0.3/32 via 172.19.0.1 src-ip exgw-rtoe-GR_n1",
            "GR_n1|10.244.0.3/32 via 172.19.0.9 src-ip exgw-rtoe-GR_n1",
            "GR_n1|fd00:10:244::3/128 via fd00:19::1 src-ip exgw-rtoe-GR_n1",
        ]
    );
    let row = &rows(&index, &unit("a"), Table::LogicalRouterStaticRoute)[0];
    assert_eq!(row.columns["options"], map([("ecmp_symmetric_reply", "true")]));
    assert_eq!(row.columns["output_port"], "exgw-rtoe-GR_n1".into());
    let all = keys(&index, &unit("a"), Table::LogicalRouterStaticRoute);
    // Answers to the node's own connections to services stay on the node.
    assert_eq!(
        all[3..],
        ["GR_n1|169.254.169.2/32 via 169.254.169.4  rtoe-GR_n1", "GR_n1|fd69::2/128 via fd69::4  rtoe-GR_n1"]
    );
    assert_eq!(routes(&index, "host"), [] as [String; 0]);
    assert_eq!(keys(&index, &unit("a"), Table::Bfd), [] as [String; 0]);
    assert!(plan(&index, &config(), &Unit::ExternalGateways("n1".to_owned())).is_empty());
}

#[test]
fn routes_leave_by_the_first_uplink_where_there_is_no_second_one() {
    let index = index(node("shared", &[]), &["172.18.0.1"], false);
    assert_eq!(routes(&index, "a"), ["GR_n1|10.244.0.3/32 via 172.18.0.1 src-ip rtoe-GR_n1"]);
}

#[test]
fn a_gateway_of_a_family_that_the_port_has_not_is_left_out_and_found() {
    let index = index(node("shared", &["172.19.0.2/16"]), &["172.19.0.1", "fd00:19::1"], true);
    assert_eq!(routes(&index, "a").len(), 1);
    let found = out_of_reach(&index, &index.pods[&NamespacedName::new("x", "a")]);
    assert_eq!(found, Some(("exgw-rtoe-GR_n1".to_owned(), vec!["fd00:19::1".parse().unwrap()])));
    assert_eq!(keys(&index, &unit("a"), Table::Bfd), ["exgw-rtoe-GR_n1 172.19.0.1"]);
}

#[test]
fn with_bfd_the_routes_of_all_pods_to_a_gateway_refer_to_one_session() {
    let mut index = index(node("shared", &[]), &["172.18.0.1"], true);
    index.apply_pod(pod("b", 4, false));
    let sessions = ["a", "b"].map(|pod| rows(&index, &unit(pod), Table::Bfd));
    assert_eq!(sessions[0], sessions[1]);
    let links = plan(&index, &config(), &unit("b")).into_iter().filter_map(|item| match item {
        Item::Edge(edge) if edge.column == "bfd" => Some(edge),
        _ => None,
    });
    let links: Vec<_> = links.map(|edge| (edge.owner.key.to_string(), edge.member)).collect();
    let session = crate::plan::Member::Row(key::bfd("rtoe-GR_n1", "172.18.0.1"));
    assert_eq!(links, [("GR_n1|10.244.0.4/32 via 172.18.0.1 src-ip rtoe-GR_n1".to_owned(), session)]);
    // A server whose schema knows no BFD gets the routes alone.
    let old = Config { features: Features { bfd: false, ..Features::ALL }, ..config() };
    let tables = plan(&index, &old, &unit("b")).into_iter().filter_map(|item| match item {
        Item::Row(row) => Some(row.key.table),
        Item::Edge(_) => None,
    });
    assert_eq!(
        tables.collect::<Vec<_>>(),
        [Table::LogicalSwitchPort, Table::LogicalRouterStaticRoute, Table::LogicalRouterStaticRoute]
    );
}

#[test]
fn in_mode_local_a_policy_of_each_family_leads_to_the_gateway_router() {
    let index = index(node("local", &[]), &["172.18.0.1"], false);
    let way = Unit::ExternalGateways("n1".to_owned());
    let set = rows(&index, &way, Table::AddressSet);
    assert_eq!(set.len(), 1, "no gateway is of the other family");
    assert_eq!(set[0].key.key.as_str(), "default-network-controller:ExternalGateways:n1:v4");
    let policies = rows(&index, &way, Table::LogicalRouterPolicy);
    let matching = format!(
        "inport == \"rtos-n1\" && ip4.src == ${} && ip4.dst != 10.244.0.0/16",
        set[0].key.hashed_name()
    );
    assert_eq!(policies[0].columns["match"], matching.into());
    assert_eq!(policies[0].columns["nexthops"], Datum::set(["100.64.0.2"]));
    let items = plan(&index, &config(), &way);
    assert!(items.contains(&Item::text(&set[0].key, "addresses", "10.244.0.3")), "{items:?}");
    assert_eq!(routes(&index, "a").len(), 1);
}

#[test]
fn what_routes_depend_on_makes_only_pods_with_gateways_dirty() {
    let pods = |dirty: &crate::index::Dirty| {
        dirty.iter().filter(|unit| matches!(unit, Unit::Pod(_))).map(ToString::to_string).collect::<Vec<_>>()
    };
    let mut index = index(node("shared", &[]), &["172.18.0.1"], false);
    let mut elsewhere = pod("c", 9, false);
    elsewhere.name = NamespacedName::new("y", "c");
    index.apply_pod(elsewhere);
    // The second uplink comes.
    let changed = index.apply_node(node("shared", &["172.19.0.2/16"]));
    assert_eq!(pods(&changed), ["pod x/a"]);
    assert_eq!(routes(&index, "a"), ["GR_n1|10.244.0.3/32 via 172.18.0.1 src-ip exgw-rtoe-GR_n1"]);
    // The annotation changes.
    let changed = index.apply_namespace(namespace(&["172.19.0.7"], false));
    assert_eq!(pods(&changed), ["pod x/a"]);
    assert!(index.apply_namespace(namespace(&["172.19.0.7"], false)).is_empty());
    // One pod more concerns only that pod, and in mode local the node's set.
    let changed = index.apply_pod(pod("b", 4, false));
    let units: Vec<_> = changed.iter().map(ToString::to_string).collect();
    assert_eq!(units, ["pod x/b", "way to external gateways on node n1"]);
    assert_eq!(pods(&index.delete_namespace("x")), ["pod x/a", "pod x/b"]);
    assert_eq!(routes(&index, "a"), [] as [String; 0]);
}
