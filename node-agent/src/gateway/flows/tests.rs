use super::*;
use crate::gateway::services::fixture;

/// Flows of a bridge as `ovs-ofctl --names dump-flows` printed them, from a run of the reference on the same objects.
const NODES: &str = include_str!("golden/nodes.txt");
const SERVICES: &str = include_str!("golden/services.txt");

pub(in crate::gateway) fn inputs() -> Inputs {
    Inputs {
        uplink: "eth0".to_owned(),
        patch: Some("\"patch-breth0_n1\"".to_owned()),
        mac: "02:42:ac:12:00:02".parse().unwrap(),
        node: "172.18.0.2/16".parse().unwrap(),
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        masquerade_ovn: "169.254.169.1".parse().unwrap(),
        masquerade_host: "169.254.169.2".parse().unwrap(),
        remote_nodes: BTreeSet::from(["172.18.0.3".parse().unwrap()]),
    }
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
    // Service cookies are ours; all others are given.
    let given = [0, BASE_COOKIE, PMTUD_COOKIE, HOST_BACKEND_COOKIE].contains(&cookie);
    (table, priority, given.then_some(cookie), matches.join(","), actions.to_owned())
}

fn set_of(text: &str) -> BTreeSet<(u8, u16, Option<u64>, String, String)> {
    text.lines().filter(|l| !l.is_empty()).map(parse).collect()
}

#[test]
fn flows_without_services_are_those_of_the_reference() {
    let ours = compute(&inputs(), &[]);
    assert_eq!(set_of(&ours.to_string()), set_of(NODES));
    assert_eq!(ours.len(), NODES.lines().count());
}

#[test]
fn flows_with_services_are_those_of_the_reference_but_for_cookies() {
    let ours = compute(&inputs(), &fixture::reference_services("n1"));
    assert_eq!(set_of(&ours.to_string()), set_of(SERVICES));
    assert_eq!(ours.len(), SERVICES.lines().count());
}

#[test]
fn until_the_patch_port_is_there_the_bridge_only_switches() {
    let ours = compute(&Inputs { patch: None, ..inputs() }, &fixture::reference_services("n1"));
    assert_eq!(ours.to_string(), "cookie=0x0,table=0,priority=0,actions=NORMAL\n");
}

#[test]
fn a_local_policy_service_with_a_host_backend_is_served_on_the_bridge() {
    let mut service =
        fixture::reference_services("n1").into_iter().find(|s| s.key == "red/lb-local").unwrap();
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
fn the_order_of_services_and_nodes_does_not_matter() {
    let services = fixture::reference_services("n1");
    let reversed: Vec<_> = services.iter().rev().cloned().collect();
    assert_eq!(compute(&inputs(), &services).to_string(), compute(&inputs(), &reversed).to_string());
}
