use super::*;
use crate::gateway::services::fixture;

/// Flows of a bridge as `ovs-ofctl --names dump-flows` printed them, from a run of the reference on the same objects.
const NODES: &str = include_str!("golden/nodes.txt");
const SERVICES: &str = include_str!("golden/services.txt");

pub(in crate::gateway) fn inputs() -> Inputs {
    Inputs {
        mode: GatewayMode::Shared,
        uplink: "eth0".to_owned(),
        patch: Some("\"patch-breth0_n1\"".to_owned()),
        mac: "02:42:ac:12:00:02".parse().unwrap(),
        families: vec![FamilyInputs {
            node: "172.18.0.2/16".parse().unwrap(),
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
            masquerade_ovn: "169.254.169.1".parse().unwrap(),
            masquerade_host: "169.254.169.2".parse().unwrap(),
        }],
        remote_nodes: BTreeSet::from(["172.18.0.3".parse().unwrap()]),
        tunnel_ends: BTreeSet::new(),
        local_ports: 32768..=60999,
    }
}

fn dual_inputs() -> Inputs {
    let mut dual = inputs();
    dual.families.push(FamilyInputs {
        node: "fd00:172:18::2/64".parse().unwrap(),
        service_cidrs: vec!["fd00:10:96::/112".parse().unwrap()],
        masquerade_ovn: "fd69::1".parse().unwrap(),
        masquerade_host: "fd69::2".parse().unwrap(),
    });
    dual.remote_nodes.insert("fd00:172:18::3".parse().unwrap());
    dual
}

/// A line of a dump as (table, priority, cookie of base flows, match, actions).
fn parse(line: &str) -> (u8, u16, Option<u64>, String, String) {
    let (head, actions) = line.split_once("actions=").unwrap();
    let (mut table, mut priority, mut cookie) = (0, DEFAULT_PRIORITY, 0);
    let mut matches = Vec::new();
    for field in head.split([',', ' ']).filter(|f| !f.is_empty()) {
        match field.split_once('=') {
            Some(("table", v)) => table = v.parse().unwrap(),
            Some(("priority", v)) => priority = v.parse().unwrap(),
            Some(("cookie", v)) => cookie = u64::from_str_radix(v.trim_start_matches("0x"), 16).unwrap(),
            _ => matches.push(field),
        }
    }
    // Cookies of services differ from the reference; all others are the same.
    let given = [0, BASE_COOKIE, PMTUD_COOKIE, HOST_BACKEND_COOKIE].contains(&cookie);
    (table, priority, given.then_some(cookie), matches.join(","), actions.to_owned())
}

fn set_of(text: &str) -> BTreeSet<(u8, u16, Option<u64>, String, String)> {
    text.lines().filter(|l| !l.is_empty()).map(parse).collect()
}

/// The reference with the one flow that differs on purpose: packets of the node to services have a source MAC of their own, so that
/// refusals reach the node.
fn reference(text: &str) -> BTreeSet<(u8, u16, Option<u64>, String, String)> {
    let (theirs, ours) = ("actions=mod_dl_dst:", "actions=mod_dl_src:0a:58:a9:fe:a9:01,mod_dl_dst:");
    let replaced =
        text.replace(&format!("table=2, priority=100 {theirs}"), &format!("table=2, priority=100 {ours}"));
    assert_ne!(replaced, text);
    set_of(&replaced)
}

#[test]
fn flows_without_services_are_those_of_the_reference() {
    let ours = compute(&inputs(), &[]);
    assert_eq!(set_of(&ours.to_string()), reference(NODES));
    assert_eq!(ours.len(), NODES.lines().count());
}

#[test]
fn flows_with_services_are_those_of_the_reference_but_for_cookies() {
    let ours = compute(&inputs(), &fixture::reference_services("n1"));
    assert_eq!(set_of(&ours.to_string()), reference(SERVICES));
    assert_eq!(ours.len(), SERVICES.lines().count());
}

#[test]
fn what_pods_send_to_tunnel_ends_on_the_tunnels_port_is_dropped_in_both_families() {
    let ends = ["172.18.0.2", "172.18.0.3", "fd00:172:18::3"].map(|ip| ip.parse().unwrap());
    let text = compute(&Inputs { tunnel_ends: ends.into(), ..dual_inputs() }, &[]).to_string();
    for matches in [
        "udp,in_port=\"patch-breth0_n1\",nw_dst=172.18.0.2",
        "udp,in_port=\"patch-breth0_n1\",nw_dst=172.18.0.3",
        "udp6,in_port=\"patch-breth0_n1\",ipv6_dst=fd00:172:18::3",
    ] {
        let flow = format!("table=0,priority=700,{matches},tp_dst=6081,actions=drop\n");
        assert!(text.contains(&flow), "{flow} is not in\n{text}");
    }
}

#[test]
fn until_the_patch_port_is_there_the_bridge_only_switches() {
    let ours = compute(&Inputs { patch: None, ..inputs() }, &fixture::reference_services("n1"));
    assert_eq!(ours.to_string(), "cookie=0x0,table=0,priority=0,actions=NORMAL\n");
}

#[test]
fn a_local_policy_service_with_a_host_backend_is_served_on_the_bridge() {
    let mut service =
        fixture::reference_services("n1").into_iter().find(|s| s.name.name == "lb-local").unwrap();
    service.ports[0].local = vec![("172.18.0.2".parse().unwrap(), 9090)];
    let text = compute(&inputs(), &[service]).to_string();
    for flow in [
        "cookie=0xe745ecf105,table=0,priority=110,tcp,in_port=eth0,tp_dst=30081,\
         actions=ct(commit,table=6,zone=64003,nat(dst=172.18.0.2:9090))",
        "cookie=0xe745ecf105,table=0,priority=110,tcp,in_port=eth0,nw_dst=172.18.10.1,tp_dst=80,\
         actions=ct(commit,table=6,zone=64003,nat(dst=172.18.0.2:9090))",
        "cookie=0xe745ecf105,table=0,priority=110,tcp,in_port=LOCAL,tp_src=9090,\
         actions=ct(table=7,zone=64003,nat)",
        "table=6,priority=110,actions=LOCAL",
        "table=7,priority=110,actions=output:eth0",
    ] {
        assert!(text.contains(flow), "{flow} is not in\n{text}");
    }
    assert!(!text.contains("tp_src=30081"), "OVN must not serve it as well:\n{text}");
}

#[test]
fn answers_to_the_nodes_own_connections_do_not_go_to_a_node_port_of_the_same_number() {
    let wide = Inputs { local_ports: 1024..=65535, ..inputs() };
    let services = fixture::reference_services("n1");
    let text = compute(&wide, &services).to_string();
    for flow in [
        "table=0,priority=110,tcp,in_port=eth0,tp_dst=30080,actions=ct(table=8,zone=64000)",
        "table=8,priority=0,actions=output:\"patch-breth0_n1\"",
        "table=8,priority=100,ct_state=+est+trk,ct_mark=0x2,actions=LOCAL",
        "table=8,priority=100,ct_state=+rel+trk,ct_mark=0x2,actions=LOCAL",
        // External addresses are not the node's own.
        "tcp,in_port=eth0,nw_dst=172.18.11.1,tp_dst=80,actions=output:\"patch-breth0_n1\"",
    ] {
        assert!(text.contains(flow), "{flow} is not in\n{text}");
    }
    // Served on the bridge itself.
    let mut local = services.into_iter().find(|s| s.name.name == "lb-local").unwrap();
    local.ports[0].local = vec![("172.18.0.2".parse().unwrap(), 9090)];
    let text = compute(&wide, &[local]).to_string();
    for flow in [
        "table=0,priority=110,tcp,in_port=eth0,tp_dst=30081,actions=ct(table=8,zone=64000)",
        "table=8,priority=50,tcp,in_port=eth0,tp_dst=30081,\
         actions=ct(commit,table=6,zone=64003,nat(dst=172.18.0.2:9090))",
    ] {
        assert!(text.contains(flow), "{flow} is not in\n{text}");
    }
}

#[test]
fn the_order_of_services_and_nodes_does_not_matter() {
    let services = fixture::reference_services("n1");
    let reversed: Vec<_> = services.iter().rev().cloned().collect();
    assert_eq!(compute(&inputs(), &services).to_string(), compute(&inputs(), &reversed).to_string());
}

/// A service with both families.
fn dual(name: &str) -> NodeService {
    let mut service = fixture::reference_services("n1").into_iter().find(|s| s.name.name == name).unwrap();
    service.cluster_ips.push("fd00:10:96::53".parse().unwrap());
    service.external_ips.push("fd00:172:18:10::1".parse().unwrap());
    service
}

#[test]
fn a_second_family_changes_no_flow_of_the_first() {
    let services = fixture::reference_services("n1");
    let single = set_of(&compute(&inputs(), &services).to_string());
    let both = set_of(&compute(&dual_inputs(), &services).to_string());
    assert!(single.is_subset(&both));
    // Every flow of one IPv4 family has its IPv6 twin, and discovery has two.
    let count =
        |ip: &str| both.difference(&single).filter(|flow| flow.3.split(',').any(|field| field == ip)).count();
    let of_ipv4 = single.iter().filter(|flow| flow.3.split(',').any(|field| field == "ip")).count();
    assert_eq!(count("ipv6"), of_ipv4);
}

#[test]
fn ipv6_flows_are_written_as_ovs_reads_them() {
    let text = compute(&dual_inputs(), &[]).to_string();
    let mac = "02:42:ac:12:00:02";
    for flow in [
        "cookie=0x304,table=0,priority=700,icmp6,in_port=\"patch-breth0_n1\",ipv6_dst=fd00:172:18::3,\
         icmp_type=2,icmp_code=0,actions=drop"
            .to_owned(),
        "priority=500,ipv6,in_port=LOCAL,ipv6_dst=fd00:10:96::/112,\
         actions=ct(commit,table=2,zone=64001,nat(src=fd69::2))"
            .to_owned(),
        "priority=500,ipv6,in_port=LOCAL,ipv6_dst=fd69::1,actions=ct(table=5,zone=64002,nat)".to_owned(),
        "priority=500,ipv6,in_port=\"patch-breth0_n1\",ipv6_src=fd00:172:18::2,ipv6_dst=fd69::2,\
         actions=ct(commit,table=4,zone=64001,nat(dst=fd00:172:18::2))"
            .to_owned(),
        format!("priority=102,ipv6,in_port=LOCAL,dl_src={mac},ipv6_dst=fd00:172:18::/64,actions=ct(commit"),
        format!("priority=50,ipv6,dl_dst={mac},actions=ct(table=1,zone=64000,nat)"),
        "table=1,priority=14,icmp6,icmp_type=136,actions=FLOOD".to_owned(),
        "table=4,priority=32768,ipv6,actions=ct(commit,table=3,zone=64002,nat(src=fd69::1))".to_owned(),
    ] {
        assert!(text.contains(&flow), "{flow} is not in\n{text}");
    }
}

#[test]
fn a_dual_service_is_served_in_both_families_and_a_single_one_in_its_own() {
    let text = compute(&dual_inputs(), &[dual("lb-local")]).to_string();
    for flow in [
        "tcp,in_port=eth0,tp_dst=30081,actions=output:\"patch-breth0_n1\"",
        "tcp6,in_port=eth0,tp_dst=30081,actions=output:\"patch-breth0_n1\"",
        "tcp6,in_port=eth0,ipv6_dst=fd00:172:18:10::1,tp_dst=80,actions=output:\"patch-breth0_n1\"",
        "icmp6,in_port=eth0,icmp_type=135,nd_target=fd00:172:18:10::1,actions=LOCAL",
        "icmp6,in_port=eth0,ipv6_dst=fd00:172:18:10::1,icmp_type=2,icmp_code=0,actions=output",
    ] {
        assert!(text.contains(flow), "{flow} is not in\n{text}");
    }
    let text = compute(&dual_inputs(), &fixture::reference_services("n1")).to_string();
    assert!(!text.contains("tcp6"), "{text}");
}

#[test]
fn an_ipv6_host_backend_is_named_in_brackets() {
    let mut service = dual("lb-local");
    service.ports[0].local = vec![("fd00:172:18::2".parse().unwrap(), 9090)];
    let text = compute(&dual_inputs(), &[service]).to_string();
    assert!(
        text.contains(
            "tcp6,in_port=eth0,tp_dst=30081,\
             actions=ct(commit,table=6,zone=64003,nat(dst=[fd00:172:18::2]:9090))"
        ),
        "{text}"
    );
    assert!(text.contains("tcp,in_port=eth0,tp_dst=30081,actions=output"), "IPv4 stays with OVN:\n{text}");
}

/// What the reference has in mode local and we do not: it serves gateways of namespaces by BFD; it sends what OVN's gateway router begins to
/// the node's stack (priority 175), and asks a table for answers of that which are too long for a pod.
const NOT_OURS: [&str; 4] = ["priority=650,", "priority=175,", "table=11,", "check_pkt_larger"];
/// What we have in mode local and the reference does not: all as in mode shared.
const AS_SHARED: [&str; 4] =
    ["priority=700,", "priority=102,ip,in_port=\"patch", "nw_frag=yes,", "ct_mark=0x1,ip,"];

#[test]
fn flows_of_mode_local_are_those_of_the_reference_but_for_what_the_gateway_router_begins() {
    const LOCAL: &str = include_str!("golden/local.txt");
    let kept: Vec<&str> =
        LOCAL.lines().filter(|line| !NOT_OURS.iter().any(|part| line.contains(part))).collect();
    assert_eq!(LOCAL.lines().count() - kept.len(), 8);
    let shared = compute(&inputs(), &[]).to_string();
    let ours = compute(&Inputs { mode: GatewayMode::Local, ..inputs() }, &fixture::reference_services("n1"));
    let ours = ours.to_string();
    let as_shared = |line: &&str| AS_SHARED.iter().any(|part| line.contains(part));
    let (as_shared, ours): (Vec<&str>, Vec<&str>) = ours.lines().partition(as_shared);
    assert_eq!(as_shared.len(), 5, "{as_shared:?}");
    for line in as_shared {
        assert!(shared.contains(line), "{line} is not in\n{shared}");
    }
    assert_eq!(set_of(&ours.join("\n")), reference(&kept.join("\n")));
}

#[test]
fn in_mode_local_what_begins_outside_is_the_nodes_in_both_families() {
    let services = fixture::reference_services("n1");
    let text = compute(&Inputs { mode: GatewayMode::Local, ..dual_inputs() }, &services).to_string();
    let from_outside = |line: &&str| line.contains("in_port=eth0") && !line.contains("tp_dst=3784");
    for line in text.lines().filter(from_outside) {
        assert!(!line.contains("actions=output:\"patch"), "{line}");
    }
}
