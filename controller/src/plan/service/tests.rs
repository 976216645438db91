use std::collections::BTreeSet;

use ovsdb_client::{Atom, Datum};
use serde_json::json;

use super::*;
use crate::config::Features;
use crate::plan::{Member, Table};
use api::NamespacedName;
use api::service::{Condition, Hints, ServicePort};

fn config() -> Config {
    Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap(), "fd00:10:244::/48/64".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap(), "fd98::/64".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap(), "fd69::/125".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: None,
        default_network: true,
        features: Features::ALL,
    }
}

fn node(number: u32) -> Node {
    let addresses = [format!("172.18.0.{number}/16"), format!("fc00::{number}/64")];
    Node {
        name: format!("n{number}"),
        id: number + 1,
        subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
        addresses: vec![
            format!("172.18.0.{number}").parse().unwrap(),
            format!("fc00::{number}").parse().unwrap(),
        ],
        chassis: Some(format!("ch{number}")),
        gateway: Some(
            serde_json::from_value(json!({"mode": "shared", "bridge-id": "b", "interface-id": "b_n",
                "mac-address": "02:42:ac:12:00:02", "ip-addresses": addresses, "next-hops": [],
                "node-port-enable": "true", "vlan-id": "0"}))
            .unwrap(),
        ),
        gateway_unknown: false,
        host_cidrs: Vec::new(),
        userspace_tso: false,
        labels: BTreeMap::new(),
    }
}

fn service(ip: &str) -> Service {
    Service {
        name: NamespacedName::new("ns", "s"),
        created: 0,
        cluster_ips: vec![ip.parse().unwrap()],
        external_ips: Vec::new(),
        ingress_ips: Vec::new(),
        source_ranges: Vec::new(),
        unreadable_ranges: false,
        ports: vec![ServicePort { name: String::new(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        external_local: false,
        internal_local: false,
        affinity: None,
        health_check_port: None,
    }
}

fn with_node_port(mut service: Service) -> Service {
    service.ports[0].node_port = Some(30080);
    service
}

fn endpoint(address: &str, node: u32, condition: Condition) -> Endpoint {
    Endpoint {
        port_name: String::new(),
        protocol: Protocol::Tcp,
        address: address.parse().unwrap(),
        port: 8080,
        node: Some(format!("n{node}")),
        condition,
        hints: Hints::default(),
    }
}

fn ready(address: &str, node: u32) -> Endpoint {
    endpoint(address, node, Condition::Ready)
}

fn strings(datum: &Datum) -> Vec<(String, String)> {
    let Datum::Map(pairs) = datum else { panic!("{datum:?}") };
    let text = |atom: &Atom| if let Atom::String(text) = atom { text.clone() } else { panic!("{atom:?}") };
    pairs.iter().map(|(key, value)| (text(key), text(value))).collect()
}

/// `name @ where it is attached: vip=targets …`, without the common start of the names.
fn plan_on(service: &Service, endpoints: &[Endpoint], nodes: &[Node]) -> Vec<String> {
    let nodes: BTreeMap<String, Node> = nodes.iter().map(|node| (node.name.clone(), node.clone())).collect();
    let items = service_items(service, endpoints, NodesView(&nodes), &config());
    let mut attached: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for item in &items {
        if let Item::Edge(edge) = item
            && edge.column != "acls"
        {
            assert_eq!(edge.column, "load_balancer");
            let Member::Row(row) = &edge.member else { panic!("{edge:?}") };
            attached.entry(row.key.to_string()).or_default().insert(edge.owner.key.to_string());
        }
    }
    let rows = items.iter().filter_map(|item| if let Item::Row(row) = item { Some(row) } else { None });
    rows.filter(|row| row.key.table == Table::LoadBalancer)
        .map(|row| {
            let name = row.key.key.strip_prefix("Service_ns/s_").unwrap();
            let places: Vec<_> = attached[row.key.key.as_str()].iter().map(String::as_str).collect();
            let vips: Vec<_> =
                strings(&row.columns["vips"]).into_iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("{name} @ {}: {}", places.join(","), vips.join(" "))
        })
        .collect()
}

fn plan(service: &Service, endpoints: &[Endpoint]) -> Vec<String> {
    plan_on(service, endpoints, &[node(1), node(2)])
}

#[test]
fn ready_endpoints_are_used_and_terminating_ones_only_where_none_is_ready() {
    let (a, b) = ("10.244.1.3", "10.244.2.3");
    let with = |first, second| {
        plan(&service("10.96.0.9"), &[endpoint(a, 1, first), endpoint(b, 2, second)]).remove(0)
    };
    use Condition::{NotReady, Ready, Terminating};
    let start = "TCP_cluster @ clusterLBGroup: 10.96.0.9:80=";
    assert_eq!(with(Ready, Terminating), format!("{start}{a}:8080"));
    assert_eq!(with(NotReady, Terminating), format!("{start}{b}:8080"));
    assert_eq!(with(Terminating, Terminating), format!("{start}{a}:8080,{b}:8080"));
    assert_eq!(with(NotReady, NotReady), start);
}

#[test]
fn the_fallback_to_terminating_endpoints_is_judged_behind_the_locality_filter() {
    let service = Service { internal_local: true, ..service("10.96.0.9") };
    let endpoints = [ready("10.244.1.3", 1), endpoint("10.244.2.3", 2, Condition::Terminating)];
    assert_eq!(
        plan(&service, &endpoints),
        [
            "TCP_node_router+switch_n1_merged @ GR_n1,GR_n2,n1: 10.96.0.9:80=10.244.1.3:8080",
            "TCP_node_switch_n2 @ n2: 10.96.0.9:80=10.244.2.3:8080",
        ]
    );
}

#[test]
fn internal_traffic_policy_does_not_touch_external_addresses() {
    let external = vec!["192.0.2.7".parse().unwrap()];
    let service = Service { internal_local: true, external_ips: external, ..service("10.96.0.9") };
    let lines = plan(&service, &[ready("10.244.1.3", 1)]);
    assert_eq!(lines[0], "TCP_cluster @ clusterLBGroup: 192.0.2.7:80=10.244.1.3:8080");
    assert!(lines.contains(&"TCP_node_switch_n2 @ n2: 10.96.0.9:80=".to_owned()), "{lines:#?}");
}

#[test]
fn external_traffic_policy_does_not_touch_the_cluster_address() {
    let service = with_node_port(Service { external_local: true, ..service("10.96.0.9") });
    let lines = plan(&service, &[ready("10.244.1.3", 1)]);
    assert_eq!(
        lines,
        [
            "TCP_cluster @ clusterLBGroup: 10.96.0.9:80=10.244.1.3:8080",
            "TCP_node_switch_n1 @ n1: 169.254.169.3:30080=10.244.1.3:8080 172.18.0.1:30080=10.244.1.3:8080",
            "TCP_node_local_router_n1 @ GR_n1: 172.18.0.1:30080=10.244.1.3:8080",
            "TCP_node_router_n2 @ GR_n2: 172.18.0.2:30080=",
            "TCP_node_switch_n2 @ n2: 169.254.169.3:30080= 172.18.0.2:30080=10.244.1.3:8080",
        ]
    );
}

#[test]
fn who_refuses_for_policy_local_is_not_hidden_from_clients_outside() {
    let external = vec!["192.0.2.7".parse().unwrap()];
    let service = Service { external_local: true, external_ips: external, ..service("10.96.0.9") };
    let refusing = |service: &Service| {
        let nodes = BTreeMap::from([1, 2].map(|number| (format!("n{number}"), node(number))));
        let items = service_items(service, &[ready("10.244.1.3", 1)], NodesView(&nodes), &config());
        let rows =
            items.into_iter().filter_map(|item| if let Item::Row(row) = item { Some(row) } else { None });
        let found: Vec<(String, bool)> = rows
            .filter(|row| strings(&row.columns["vips"]).contains(&("192.0.2.7:80".to_owned(), String::new())))
            .map(|row| {
                let skips = ("skip_snat".to_owned(), "true".to_owned());
                (row.key.key.as_str().to_owned(), strings(&row.columns["options"]).contains(&skips))
            })
            .collect();
        found
    };
    assert_eq!(refusing(&service), [("Service_ns/s_TCP_node_router_n2".to_owned(), true)]);
    // With addresses that are served there beside it.
    let inside = Service { internal_local: true, ..service };
    assert_eq!(refusing(&inside), [("Service_ns/s_TCP_node_local_router_n2".to_owned(), true)]);
}

#[test]
fn a_host_endpoint_is_masqueraded_on_its_own_gateway_router_only() {
    assert_eq!(
        plan(&service("10.96.0.9"), &[ready("172.18.0.2", 2)]),
        [
            "TCP_node_router+switch_n1_merged @ GR_n1,n1,n2: 10.96.0.9:80=172.18.0.2:8080",
            "TCP_node_router_n2 @ GR_n2: 10.96.0.9:80=169.254.169.2:8080",
        ]
    );
}

#[test]
fn a_local_host_endpoint_keeps_the_client_by_the_masquerade_address() {
    let service = with_node_port(Service { external_local: true, ..service("10.96.0.9") });
    let lines = plan(&service, &[ready("172.18.0.2", 2)]);
    assert!(
        lines.contains(&"TCP_node_local_router_n2 @ GR_n2: 172.18.0.2:30080=169.254.169.2:8080".to_owned()),
        "{lines:#?}"
    );
}

#[test]
fn one_node_has_nothing_to_merge() {
    let lines = plan_on(&service("10.96.0.9"), &[ready("192.0.2.1", 9)], &[node(1)]);
    assert_eq!(lines, ["TCP_node_router+switch_n1 @ GR_n1,n1: 10.96.0.9:80=192.0.2.1:8080"]);
}

#[test]
fn a_node_without_gateway_has_only_its_switch_and_one_without_range_has_nothing() {
    let bare = Node { gateway: None, chassis: None, ..node(1) };
    let unknown = Node { subnets: Vec::new(), ..node(2) };
    assert_eq!(
        plan_on(&with_node_port(service("10.96.0.9")), &[ready("10.244.1.3", 1)], &[bare, unknown]),
        [
            "TCP_cluster @ clusterLBGroup: 10.96.0.9:80=10.244.1.3:8080",
            "TCP_node_switch_n1 @ n1: 172.18.0.1:30080=10.244.1.3:8080",
        ]
    );
}

#[test]
fn ipv6_is_in_brackets_and_targets_are_of_the_vips_family() {
    let mut dual = with_node_port(service("10.96.0.9"));
    dual.cluster_ips.push("fd00:96::9".parse().unwrap());
    let endpoints = [ready("10.244.1.3", 1), ready("fd00:10:244:1::3", 1)];
    assert_eq!(
        plan_on(&dual, &endpoints, &[node(1)]),
        [
            "TCP_cluster @ clusterLBGroup: 10.96.0.9:80=10.244.1.3:8080 [fd00:96::9]:80=[fd00:10:244:1::3]:8080",
            "TCP_node_router+switch_n1 @ GR_n1,n1: 172.18.0.1:30080=10.244.1.3:8080 [fc00::1]:30080=[fd00:10:244:1::3]:8080",
        ]
    );
}

#[test]
fn addresses_of_a_family_that_the_service_does_not_have_get_no_vip() {
    let external = vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    let single = with_node_port(Service { external_ips: external, ..service("10.96.0.9") });
    let lines = plan_on(&single, &[ready("10.244.1.3", 1)], &[node(1)]);
    assert!(lines.iter().all(|line| !line.contains('[')), "{lines:#?}");
    assert!(lines[0].contains("192.0.2.7:80="));
}

#[test]
fn pods_that_give_one_named_port_different_numbers_are_all_targets() {
    let mut other = ready("10.244.2.3", 2);
    other.port = 9090;
    assert_eq!(
        plan(&service("10.96.0.9"), &[ready("10.244.1.3", 1), other]),
        ["TCP_cluster @ clusterLBGroup: 10.96.0.9:80=10.244.1.3:8080,10.244.2.3:9090"]
    );
}

#[test]
fn ports_of_one_protocol_share_a_load_balancer_and_each_has_only_its_own_endpoints() {
    let mut two = service("10.96.0.9");
    two.ports[0].name = "a".into();
    two.ports.push(ServicePort { name: "b".into(), protocol: Protocol::Tcp, port: 81, node_port: None });
    two.ports.push(ServicePort { name: "c".into(), protocol: Protocol::Udp, port: 80, node_port: None });
    let of = |name: &str, address: &str| Endpoint { port_name: name.into(), ..ready(address, 1) };
    assert_eq!(
        plan(&two, &[of("a", "10.244.1.3"), of("b", "10.244.1.4")]),
        [
            "TCP_cluster @ clusterLBGroup: 10.96.0.9:80=10.244.1.3:8080 10.96.0.9:81=10.244.1.4:8080",
            "UDP_cluster @ clusterLBGroup: 10.96.0.9:80=",
        ]
    );
}

#[test]
fn a_service_that_nobody_balances_has_no_items() {
    let none = Service { cluster_ips: Vec::new(), ..with_node_port(service("10.96.0.9")) };
    assert!(plan(&none, &[ready("10.244.1.3", 1)]).is_empty());
}

#[test]
fn affinity_writes_a_timeout_or_hashes_and_always_writes_both_columns() {
    let columns = |affinity| {
        let service = Service { affinity, ..service("10.96.0.9") };
        let items = service_items(&service, &[], NodesView(&BTreeMap::new()), &config());
        let Item::Row(row) = &items[0] else { panic!() };
        let timeout = strings(&row.columns["options"]).into_iter().find(|(key, _)| key == "affinity_timeout");
        (timeout.map(|(_, value)| value), row.columns["selection_fields"].len())
    };
    assert_eq!(columns(None), (None, 0));
    assert_eq!(columns(Some(125)), (Some("125".into()), 0));
    assert_eq!(columns(Some(86_400)), (None, 2));
}

fn hinted(address: &str, node: u32, zones: &[&str], nodes: &[&str]) -> Endpoint {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Endpoint { hints: Hints { zones: set(zones), nodes: set(nodes) }, ..ready(address, node) }
}

fn in_zone(number: u32, zone: &str) -> Node {
    let zone = ("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
    Node { labels: BTreeMap::from([zone]), ..node(number) }
}

/// The targets of the cluster address on the switch of each node.
fn targets_on_switches(endpoints: &[Endpoint], nodes: &[Node]) -> Vec<String> {
    let lines = plan_on(&service("10.96.0.9"), endpoints, nodes);
    let of = |node: &Node| {
        let attached = |line: &&String| {
            let places = line.split(" @ ").nth(1).unwrap().split(": ").next().unwrap();
            places == "clusterLBGroup" || places.split(',').any(|place| place == node.name)
        };
        let line = lines.iter().find(attached).unwrap_or_else(|| panic!("{} in {lines:#?}", node.name));
        line.rsplit_once('=').unwrap().1.replace(":8080", "")
    };
    nodes.iter().map(of).collect()
}

const A: &str = "10.244.1.3";
const B: &str = "10.244.2.3";

#[test]
fn clients_stay_in_their_zone_and_those_without_an_endpoint_there_use_all() {
    let nodes = [in_zone(1, "z1"), in_zone(2, "z2"), in_zone(3, "z3"), node(4)];
    let endpoints = [hinted(A, 1, &["z1"], &[]), hinted(B, 2, &["z2"], &[])];
    let both = format!("{A},{B}");
    assert_eq!(targets_on_switches(&endpoints, &nodes), [A, B, &both, &both]);
}

#[test]
fn nodes_of_one_zone_share_a_load_balancer() {
    let nodes = [in_zone(1, "z1"), in_zone(2, "z2"), in_zone(3, "z1")];
    let lines =
        plan_on(&service("10.96.0.9"), &[hinted(A, 1, &["z1"], &[]), hinted(B, 2, &["z2"], &[])], &nodes);
    assert_eq!(
        lines,
        [
            format!("TCP_node_router+switch_n1_merged @ GR_n1,GR_n3,n1,n3: 10.96.0.9:80={A}:8080"),
            format!("TCP_node_router+switch_n2 @ GR_n2,n2: 10.96.0.9:80={B}:8080"),
        ]
    );
}

#[test]
fn one_ready_endpoint_without_a_hint_makes_all_hints_void() {
    let nodes = [in_zone(1, "z1"), in_zone(2, "z2")];
    let lines = plan_on(&service("10.96.0.9"), &[hinted(A, 1, &["z1"], &["n1"]), ready(B, 2)], &nodes);
    assert_eq!(lines, [format!("TCP_cluster @ clusterLBGroup: 10.96.0.9:80={A}:8080,{B}:8080")]);
    let not_ready = Endpoint { condition: Condition::NotReady, ..ready(B, 2) };
    assert_eq!(targets_on_switches(&[hinted(A, 1, &["z1"], &[]), not_ready], &nodes), [A, A]);
}

#[test]
fn hints_for_nodes_go_before_hints_for_zones_and_fall_back_to_them() {
    let nodes = [in_zone(1, "z1"), in_zone(2, "z1"), in_zone(3, "z2"), in_zone(4, "z3")];
    let c = "10.244.3.3";
    let endpoints =
        [hinted(A, 1, &["z1"], &["n1"]), hinted(B, 2, &["z1"], &["n2"]), hinted(c, 9, &["z2"], &["n9"])];
    assert_eq!(targets_on_switches(&endpoints, &nodes), [A, B, c, &format!("{A},{B},{c}")]);
}

#[test]
fn with_no_ready_endpoint_terminating_ones_serve_whatever_their_hints() {
    let nodes = [in_zone(1, "z1"), in_zone(2, "z2")];
    let leaving = |endpoint| Endpoint { condition: Condition::Terminating, ..endpoint };
    let endpoints = [leaving(hinted(A, 1, &["z1"], &[])), leaving(hinted(B, 2, &["z2"], &[]))];
    let both = format!("{A},{B}");
    assert_eq!(targets_on_switches(&endpoints, &nodes), [both.clone(), both]);
}

#[test]
fn local_traffic_policies_do_not_look_at_hints() {
    let nodes = [in_zone(1, "z1"), in_zone(2, "z2")];
    let service = Service { internal_local: true, ..service("10.96.0.9") };
    let lines = plan_on(&service, &[hinted(A, 1, &["z2"], &[]), hinted(B, 2, &["z1"], &[])], &nodes);
    // The switch of n1 and, by the hints, the gateway router of n2 have the same targets.
    assert_eq!(lines[1], format!("TCP_node_switch_n1_merged @ GR_n2,n1: 10.96.0.9:80={A}:8080"));
}

#[test]
fn a_gateway_that_serves_no_node_ports_has_no_load_balancer_for_them() {
    let mut closed = node(1);
    closed.gateway.as_mut().unwrap().node_port_enable = "false".to_owned();
    assert_eq!(
        plan_on(&with_node_port(service("10.96.0.9")), &[ready(A, 1)], &[closed]),
        [format!("TCP_cluster @ clusterLBGroup: 10.96.0.9:80={A}:8080")]
    );
}

#[test]
fn connections_of_udp_and_sctp_are_forgotten_with_their_backend() {
    for (protocol, flushed) in [(Protocol::Tcp, false), (Protocol::Udp, true), (Protocol::Sctp, true)] {
        let options = balancer_options(protocol, false, &config());
        assert_eq!(options.get("ct_flush").map(String::as_str), flushed.then_some("true"), "{protocol:?}");
    }
}

#[test]
fn source_ranges_drop_others_before_load_balancing_on_switches_and_external_switches() {
    let ingress: Vec<IpAddr> = vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    let restricted = Service {
        external_ips: ingress.clone(),
        ingress_ips: ingress,
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "198.51.100.1/32".parse().unwrap()],
        ..service("10.96.0.9")
    };
    let nodes = BTreeMap::from([("n1".to_owned(), node(1))]);
    let items = service_items(&restricted, &[], NodesView(&nodes), &config());
    let acls: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Item::Row(row) if row.key.table == Table::Acl => Some(row.columns["match"].clone()),
            _ => None,
        })
        .collect();
    let expected = "ip4.dst == 192.0.2.7 && tcp && tcp.dst == 80 && ip4.src != {10.0.0.0/8, 198.51.100.1/32}";
    assert_eq!(acls, [Datum::from(expected)], "ranges of one family do not restrict the other");
    let places: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Item::Edge(edge) if edge.column == "acls" => Some(edge.owner.key.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(places, ["n1", "ext_n1"]);
}

#[test]
fn where_no_source_range_can_be_read_nobody_is_let_in() {
    let address = |ranges: &[&str], unreadable_ranges, ip: &str| {
        let service = Service {
            external_ips: vec![ip.parse().unwrap()],
            ingress_ips: vec![ip.parse().unwrap()],
            source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            unreadable_ranges,
            ..service("10.96.0.9")
        };
        let items = source_ranges::items(&service, NodesView(&BTreeMap::new()), &config());
        let matching = |item: &Item| match item {
            Item::Row(row) => row.columns["match"].as_str().unwrap().to_owned(),
            Item::Edge(edge) => panic!("{edge:?}"),
        };
        items.iter().map(matching).collect::<Vec<_>>()
    };
    assert_eq!(address(&[], true, "192.0.2.1"), ["ip4.dst == 192.0.2.1 && tcp && tcp.dst == 80"]);
    assert_eq!(
        address(&["10.0.0.0/8"], true, "192.0.2.1"),
        ["ip4.dst == 192.0.2.1 && tcp && tcp.dst == 80 && ip4.src != {10.0.0.0/8}"]
    );
    // The range that cannot be read may have been one of this family.
    assert_eq!(
        address(&["10.0.0.0/8"], true, "2001:db8::1"),
        ["ip6.dst == 2001:db8::1 && tcp && tcp.dst == 80"]
    );
    assert!(address(&["10.0.0.0/8"], false, "2001:db8::1").is_empty());
    assert!(address(&[], false, "192.0.2.1").is_empty());
}

#[test]
fn a_tcp_service_without_endpoints_refuses_without_source_nat() {
    let skip = |endpoints: &[Endpoint]| {
        let items = service_items(&service("10.96.0.9"), endpoints, NodesView(&BTreeMap::new()), &config());
        let Item::Row(row) = &items[0] else { panic!() };
        strings(&row.columns["options"]).into_iter().find(|(key, _)| key == "skip_snat").unwrap().1
    };
    assert_eq!((skip(&[]).as_str(), skip(&[ready(A, 1)]).as_str()), ("true", "false"));
    let mut udp = service("10.96.0.9");
    udp.ports[0].protocol = Protocol::Udp;
    let items = service_items(&udp, &[], NodesView(&BTreeMap::new()), &config());
    let Item::Row(row) = &items[0] else { panic!() };
    assert!(strings(&row.columns["options"]).contains(&("skip_snat".into(), "false".into())), "UDP keeps it");
}
