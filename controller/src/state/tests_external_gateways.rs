//! Tests of what namespaces are told about external gateways, and of second uplinks.

use serde_json::json;

use super::*;
use crate::config::Features;
use crate::index::{Namespace, convert};

fn state(default_network: bool) -> State {
    State::new(Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap(), "fd00:10:244::/48/64".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap(), "fd98::/64".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap(), "fd69::/125".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: None,
        default_network,
        features: Features::ALL,
    })
}

/// A node whose second uplink has these addresses; none without any.
fn node(name: &str, number: u8, second: &[&str]) -> SeenNode {
    let mut gateway = json!({"mode": "shared", "bridge-id": "b", "interface-id": format!("b_{name}"),
        "mac-address": "02:42:ac:12:00:02", "ip-addresses": [format!("172.18.0.{number}/16"), format!("fd00:18::{number}/64")],
        "next-hops": [], "node-port-enable": "true", "vlan-id": "0"});
    if !second.is_empty() {
        gateway["exgw-interface-id"] = format!("brx_{name}").into();
        gateway["exgw-mac-address"] = "02:42:ac:13:00:02".into();
        gateway["exgw-ip-addresses"] = json!(second);
    }
    let object = json!({"metadata": {"name": name, "uid": name, "annotations": {
        "k8s.ovn.org/node-chassis-id": format!("c-{name}"),
        "k8s.ovn.org/l3-gateway-config": json!({"default": gateway}).to_string(),
    }}});
    convert::node(serde_json::from_value(object).unwrap()).unwrap()
}

fn pod(namespace: &str, name: &str, node: &str) -> convert::SeenPod {
    let object = json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")},
        "spec": {"nodeName": node, "containers": []}});
    convert::pod(serde_json::from_value(object).unwrap()).unwrap()
}

fn namespace(gateways: &str) -> (Namespace, Vec<Problem>) {
    let object =
        json!({"metadata": {"name": "x", "annotations": {"k8s.ovn.org/routing-external-gws": gateways}}});
    convert::namespace(serde_json::from_value(object).unwrap()).unwrap()
}

fn messages(effects: &Effects) -> Vec<&str> {
    effects.notices.iter().map(|notice| notice.message.as_str()).collect()
}

#[test]
fn a_gateway_that_nodes_do_not_reach_is_told_of_once_for_each_annotation() {
    let mut state = state(true);
    for (name, number) in [("n1", 2), ("n2", 3)] {
        state.nodes(Watched::Apply(node(name, number, &["172.19.0.2/16"])));
    }
    let effects = state.namespaces(Watched::Apply(namespace("172.19.0.1,fd00:19::1")));
    assert_eq!(messages(&effects), [] as [&str; 0], "no pod needs them yet");
    let effects = state.pods(Watched::Apply(pod("x", "a", "n1")));
    let told = messages(&effects);
    assert_eq!(told.len(), 1);
    for part in [
        "namespace x: annotation k8s.ovn.org/routing-external-gws",
        "fd00:19::1",
        "node n1",
        "exgw-rtoe-GR_n1",
    ] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
    assert_eq!(effects.notices[0].object, Some(ObjectRef::cluster_wide("Namespace", "x")));
    assert_eq!(messages(&state.pods(Watched::Apply(pod("x", "b", "n2")))), [] as [&str; 0]);
    // Another annotation, and the uplink's addresses change.
    assert_eq!(state.namespaces(Watched::Apply(namespace("fd00:19::1"))).notices.len(), 1);
    let both = ["172.19.0.2/16", "fd00:19::2/64"];
    assert_eq!(messages(&state.nodes(Watched::Apply(node("n1", 2, &both)))), [] as [&str; 0]);
    state.namespaces(Watched::Delete("x".to_owned()));
    assert!(state.told_gateways.is_empty());
}

#[test]
fn what_is_wrong_with_an_annotation_is_told_once_and_again_when_it_is_wrong_again() {
    let mut state = state(true);
    assert_eq!(state.namespaces(Watched::Apply(namespace("x,y,172.19.0.1"))).notices.len(), 2);
    assert_eq!(state.namespaces(Watched::Reset(vec![namespace("x,y,172.19.0.1")])).notices.len(), 0);
    assert_eq!(state.namespaces(Watched::Apply(namespace("172.19.0.1"))).notices.len(), 0);
    assert_eq!(state.namespaces(Watched::Apply(namespace("x,172.19.0.1"))).notices.len(), 1);
}

#[test]
fn an_annotation_for_another_plugin_is_not_judged() {
    let mut state = state(false);
    state.nodes(Watched::Apply(node("n1", 2, &[])));
    assert_eq!(messages(&state.namespaces(Watched::Apply(namespace("x,172.19.0.1")))), [] as [&str; 0]);
    assert_eq!(messages(&state.pods(Watched::Apply(pod("x", "a", "n1")))), [] as [&str; 0]);
}

#[test]
fn a_pod_whose_port_would_have_the_name_of_a_second_uplink_waits_until_that_is_gone() {
    let mut state = state(true);
    let name = NamespacedName::new("brx", "n1");
    state.nodes(Watched::Apply(node("n1", 2, &[])));
    state.pods(Watched::Apply(pod("brx", "n1", "n1")));
    assert!(!state.index.pods[&name].addresses.is_empty());
    let effects = state.nodes(Watched::Apply(node("n1", 2, &["172.19.0.2/16"])));
    assert!(
        effects.notices.iter().any(|notice| notice.kind == NoticeKind::NameConflict),
        "{:?}",
        effects.notices
    );
    assert!(state.index.pods[&name].addresses.is_empty());
    state.released(&effects.release);
    state.nodes(Watched::Apply(node("n1", 2, &[])));
    assert!(!state.index.pods[&name].addresses.is_empty());
}
