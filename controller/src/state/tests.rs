//! Tests that feed objects to the state.

use super::*;
use crate::config::Features;
use crate::index::convert::{self, SeenPod};

fn state(cluster: &str) -> State {
    State::new(Config {
        cluster_subnets: vec![cluster.parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: None,
        default_network: true,
        features: Features::ALL,
    })
}

fn node(name: &str, annotations: serde_json::Value) -> SeenNode {
    let object = serde_json::json!({ "metadata": { "name": name, "uid": name, "annotations": annotations } });
    convert::node(serde_json::from_value(object).unwrap()).unwrap()
}

fn pod(name: &str, uid: &str, phase: &str, annotation: Option<&str>) -> SeenPod {
    let mut object = serde_json::json!({
        "metadata": { "name": name, "namespace": "x", "uid": uid, "annotations": {} },
        "spec": { "nodeName": "n1", "containers": [] },
        "status": { "phase": phase },
    });
    if let Some(value) = annotation {
        object["metadata"]["annotations"]["k8s.ovn.org/pod-networks"] = value.into();
    }
    convert::pod(serde_json::from_value(object).unwrap()).unwrap()
}

fn ip(state: &State, name: &str) -> Option<String> {
    state.index.pods.get(&NamespacedName::new("x", name))?.addresses.first().map(ToString::to_string)
}

#[test]
fn a_new_node_and_pod_get_the_annotations_of_the_reference() {
    let mut state = state("10.244.0.0/16/24");
    let effects = state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    assert_eq!(
        effects.patches[0].annotations["k8s.ovn.org/node-subnets"],
        r#"{"default":["10.244.0.0/24"]}"#
    );
    assert_eq!(effects.patches[0].annotations["k8s.ovn.org/node-id"], "2");
    let effects = state.pods(Watched::Apply(pod("a", "u1", "Pending", None)));
    assert_eq!(
        effects.patches[0].annotations["k8s.ovn.org/pod-networks"],
        r#"{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","gateway_ips":["10.244.0.1"],"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.0.1"},{"dest":"10.96.0.0/16","nextHop":"10.244.0.1"},{"dest":"169.254.169.5/32","nextHop":"10.244.0.1"},{"dest":"100.64.0.0/16","nextHop":"10.244.0.1"}],"ip_address":"10.244.0.3/24","gateway_ip":"10.244.0.1","role":"primary"}}"#
    );
    // The watch shows the pod again before the patch is written: no second patch.
    assert!(state.pods(Watched::Apply(pod("a", "u1", "Running", None))).patches.is_empty());
}

#[test]
fn ranges_in_the_form_of_older_versions_are_taken_and_written_anew() {
    let mut state = state("10.244.0.0/16/24");
    let network = state.config.published();
    let old = serde_json::json!({"k8s.ovn.org/node-subnets": "{\"default\":\"10.244.7.0/24\"}",
        "k8s.ovn.org/node-id": "5", "slipstream.dev/cluster-network": network});
    let effects = state.nodes(Watched::Apply(node("n1", old)));
    assert_eq!(effects.notices, []);
    assert_eq!(state.index.nodes["n1"].subnets, ["10.244.7.0/24".parse::<IpNet>().unwrap()]);
    let written =
        BTreeMap::from([("k8s.ovn.org/node-subnets", r#"{"default":["10.244.7.0/24"]}"#.to_owned())]);
    assert_eq!(effects.patches[0].annotations, written);
    state.annotated(&Annotated::Written("n1".to_owned()));
    let new = serde_json::json!({"k8s.ovn.org/node-subnets": written["k8s.ovn.org/node-subnets"],
        "k8s.ovn.org/node-id": "5", "slipstream.dev/cluster-network": network});
    assert_eq!(state.nodes(Watched::Apply(node("n1", new))).patches, []);
}

#[test]
fn a_pod_before_its_node_waits_and_is_placed_when_the_node_comes() {
    let mut state = state("10.244.0.0/16/24");
    assert!(state.pods(Watched::Apply(pod("a", "u1", "Pending", None))).notices.is_empty());
    assert_eq!(ip(&state, "a"), None);
    let effects = state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.3/24"));
    assert!(effects.dirty.contains(&Unit::Pod(NamespacedName::new("x", "a"))));
}

#[test]
fn an_address_is_free_only_after_the_database_let_go_of_it() {
    let mut state = state("10.0.0.0/26/29");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    for uid in ["a", "b", "c", "d"] {
        state.pods(Watched::Apply(pod(uid, uid, "Running", None)));
    }
    let effects = state.pods(Watched::Apply(pod("e", "e", "Pending", None)));
    assert_eq!(effects.notices[0].kind, NoticeKind::Exhausted);
    assert!(
        effects.notices[0].message.contains("pod x/e: node n1: no free address"),
        "{}",
        effects.notices[0].message
    );
    assert!(state.pods(Watched::Apply(pod("e", "e", "Pending", None))).notices.is_empty(), "told once");
    // A finished pod releases its address, but not before the transaction.
    let gone = state.pods(Watched::Apply(pod("b", "b", "Succeeded", None)));
    assert_eq!(gone.release, ["b"]);
    assert_eq!(ip(&state, "e"), None);
    state.released(&gone.release);
    assert_eq!(ip(&state, "e").as_deref(), Some("10.0.0.4/29"));
}

#[test]
fn a_recreated_pod_of_the_same_name_gets_another_address_first() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    state.pods(Watched::Apply(pod("a", "u1", "Running", None)));
    let effects = state.pods(Watched::Apply(pod("a", "u2", "Pending", None)));
    assert_eq!(effects.release, ["u1"]);
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.4/24"));
}

#[test]
fn after_a_crash_between_database_and_annotation_the_pod_keeps_its_address() {
    let mut state = state("10.244.0.0/16/24");
    let port = |uid: &str, last: u8| FoundPort {
        uid: uid.to_owned(),
        node: "n1".to_owned(),
        ips: vec![IpAddr::from([10, 244, 0, last])],
        mac: MacAddr::from_ip(IpAddr::from([10, 244, 0, last])),
    };
    state.found_ports(vec![port("u1", 9), port("gone", 3)]);
    state.nodes(Watched::Reset(vec![node("n1", serde_json::json!({}))]));
    let effects =
        state.pods(Watched::Reset(vec![pod("b", "u2", "Pending", None), pod("a", "u1", "Pending", None)]));
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.9/24"));
    // The port of a pod that is gone still blocks .3, and new pods get addresses after those in use.
    assert_eq!(ip(&state, "b").as_deref(), Some("10.244.0.10/24"));
    assert_eq!(effects.release, ["gone"]);
    assert_eq!(effects.patches.len(), 2);
}

#[test]
fn annotated_pods_keep_their_addresses_and_conflicts_are_told() {
    let annotation = |last: u8| {
        format!(
            r#"{{"default":{{"ip_addresses":["10.244.0.{last}/24"],"mac_address":"0a:58:0a:f4:00:{last:02x}"}}}}"#
        )
    };
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    let effects = state.pods(Watched::Reset(vec![
        pod("new", "u0", "Pending", None),
        pod("a", "u1", "Running", Some(&annotation(3))),
        pod("b", "u2", "Running", Some(&annotation(3))),
        pod("c", "u3", "Running", Some("nonsense")),
        pod(
            "d",
            "u4",
            "Running",
            Some(r#"{"default":{"ip_addresses":["10.9.0.3/24"],"mac_address":"0a:58:0a:f4:00:03"}}"#),
        ),
    ]));
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.3/24"));
    assert_eq!(ip(&state, "new").as_deref(), Some("10.244.0.4/24"));
    let messages: Vec<_> = effects.notices.iter().map(|notice| notice.message.as_str()).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(
        messages[0].starts_with("pod x/b: annotation k8s.ovn.org/pod-networks: address 10.244.0.3"),
        "{messages:?}"
    );
    assert!(messages[1].contains("10.9.0.3 is not a pod address of node n1"), "{messages:?}");
    // Unreadable annotations come after readable ones.
    assert!(messages[2].starts_with("pod x/c: annotation k8s.ovn.org/pod-networks"), "{messages:?}");
    assert_eq!(effects.patches.len(), 1);
}

#[test]
fn a_node_without_ranges_left_is_told_once_and_healed_by_another_going() {
    let mut state = state("10.244.0.0/24/25");
    for name in ["n1", "n2"] {
        state.nodes(Watched::Apply(node(name, serde_json::json!({}))));
    }
    let effects = state.nodes(Watched::Apply(node("n3", serde_json::json!({}))));
    assert_eq!(effects.notices[0].kind, NoticeKind::Exhausted);
    assert!(effects.notices[0].message.starts_with("node n3: no free range of length /25"));
    assert!(state.nodes(Watched::Apply(node("n3", serde_json::json!({})))).notices.is_empty());
    let effects = state.nodes(Watched::Delete("n2".to_owned()));
    assert!(state.index.nodes.contains_key("n3"));
    assert!(
        effects.dirty.contains(&Unit::Node("n2".to_owned()))
            && effects.dirty.contains(&Unit::Node("n3".to_owned()))
    );
}

#[test]
fn a_malformed_node_annotation_is_an_error_until_it_changes() {
    let mut state = state("10.244.0.0/16/24");
    let effects =
        state.nodes(Watched::Apply(node("n1", serde_json::json!({ "k8s.ovn.org/node-subnets": "x" }))));
    assert_eq!(effects.notices[0].kind, NoticeKind::Malformed);
    assert!(state.index.nodes.is_empty());
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    assert!(state.index.nodes.contains_key("n1"));
}

#[test]
fn a_relist_forgets_what_went_meanwhile() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Reset(vec![node("n1", serde_json::json!({}))]));
    state.pods(Watched::Reset(vec![pod("a", "u1", "Running", None)]));
    let effects = state.pods(Watched::Reset(vec![]));
    assert_eq!(effects.release, ["u1"]);
    assert!(state.index.pods.is_empty());
    let effects = state.nodes(Watched::Reset(vec![]));
    assert!(effects.dirty.contains(&Unit::Node("n1".to_owned())));
}

#[test]
fn pods_of_a_node_that_comes_back_get_their_addresses_again() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    state.pods(Watched::Apply(pod("a", "u1", "Running", None)));
    state.pods(Watched::Apply(pod("b", "u2", "Running", None)));
    let effects = state.nodes(Watched::Delete("n1".to_owned()));
    assert!(effects.dirty.contains(&Unit::Pod(NamespacedName::new("x", "b"))));
    assert_eq!(ip(&state, "b"), None);
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    assert_eq!(ip(&state, "b").as_deref(), Some("10.244.0.4/24"));
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.3/24"));
}

#[test]
fn a_pod_keeps_its_address_whatever_is_written_over_its_annotation() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    state.pods(Watched::Apply(pod("a", "u1", "Running", None)));
    state.annotated(&Annotated::Written("u1".to_owned()));
    let effects = state.pods(Watched::Apply(pod("a", "u1", "Running", Some("{"))));
    assert_eq!(effects.patches.len(), 1);
    let message = &effects.notices[0].message;
    assert!(message.starts_with("pod x/a: annotation k8s.ovn.org/pod-networks: "), "{message}");
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.3/24"));
    // The patch is under way: nothing more is reported.
    assert!(state.pods(Watched::Apply(pod("a", "u1", "Running", Some("{")))).notices.is_empty());
}

#[test]
fn after_a_restart_a_port_in_the_database_stands_in_for_an_unreadable_annotation() {
    let mut state = state("10.244.0.0/16/24");
    let address = IpAddr::from([10, 244, 0, 9]);
    let mac = MacAddr::from_ip(address);
    state.found_ports(vec![FoundPort { uid: "u1".into(), node: "n1".into(), ips: vec![address], mac }]);
    state.nodes(Watched::Reset(vec![node("n1", serde_json::json!({}))]));
    let effects = state.pods(Watched::Reset(vec![pod("a", "u1", "Running", Some("[]"))]));
    assert_eq!(ip(&state, "a").as_deref(), Some("10.244.0.9/24"));
    assert_eq!((effects.patches.len(), effects.notices.len()), (1, 1));
    assert!(effects.release.is_empty());
}

#[test]
fn unreadable_annotations_of_a_node_are_told_and_change_nothing() {
    let gateway = r#"{"default":{"mode":"shared","bridge-id":"breth0","interface-id":"breth0_n1","mac-address":"02:42:ac:12:00:02","ip-addresses":["172.18.0.2/16"],"next-hops":["172.18.0.1"],"node-port-enable":"true","vlan-id":"0"}}"#;
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({ "k8s.ovn.org/l3-gateway-config": gateway }))));
    state.annotated(&Annotated::Written("n1".to_owned()));
    let before = state.index.nodes["n1"].clone();
    assert!(before.gateway.is_some());
    let broken = serde_json::json!({ "k8s.ovn.org/l3-gateway-config": "{", "k8s.ovn.org/node-subnets": "x" });
    let effects = state.nodes(Watched::Apply(node("n1", broken)));
    for key in ["l3-gateway-config", "node-subnets"] {
        let told =
            effects.notices.iter().any(|n| n.message.starts_with("node n1: ") && n.message.contains(key));
        assert!(told, "{key}: {:?}", effects.notices);
    }
    assert!(effects.patches[0].annotations.contains_key("k8s.ovn.org/node-subnets"));
    assert_eq!(state.index.nodes["n1"], before);
    // Without the annotation there is no gateway.
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    assert_eq!(state.index.nodes["n1"].gateway, None);
}

#[test]
fn a_host_port_that_an_older_pod_has_is_told_of_once() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    let with_port = |name: &str, second: u8, phase: &str| {
        let object = serde_json::json!({
            "metadata": { "name": name, "namespace": "x", "uid": name,
                "creationTimestamp": format!("2026-01-01T00:00:0{second}Z") },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] },
            "status": { "phase": phase },
        });
        convert::pod(serde_json::from_value(object).unwrap()).unwrap()
    };
    assert!(state.pods(Watched::Apply(with_port("old", 1, "Running"))).notices.is_empty());
    let effects = state.pods(Watched::Apply(with_port("young", 2, "Pending")));
    assert!(effects.notices.iter().all(|notice| notice.kind == NoticeKind::Conflict));
    assert!(effects.notices[0].message.contains("hostPort 80 (TCP) of node n1 is served by pod x/old"));
    assert!(state.pods(Watched::Apply(with_port("young", 2, "Running"))).notices.is_empty());
    let gone = state.pods(Watched::Apply(with_port("old", 1, "Succeeded")));
    assert!(gone.dirty.contains(&Unit::HostPorts("n1".to_owned())), "a finished pod gives its ports back");
}

fn annotation(ips: &[&str], mac: &str) -> String {
    serde_json::json!({"default": {"ip_addresses": ips, "mac_address": mac}}).to_string()
}

#[test]
fn a_pod_gets_nothing_that_its_maker_wrote_into_its_annotation() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Reset(vec![node("n1", serde_json::json!({}))]));
    state.pods(Watched::Reset(vec![]));
    let four = ["10.244.0.5/24", "10.244.0.6/24", "10.244.0.7/24", "10.244.0.8/24"];
    for (name, forged, wrong) in [
        (
            "mac",
            annotation(&["10.244.0.5/24"], "0a:58:0a:f4:00:01"),
            "mac_address 0a:58:0a:f4:00:01 is not 0a:58:0a:f4:00:05",
        ),
        ("many", annotation(&four, "0a:58:0a:f4:00:05"), "one address of each of 10.244.0.0/24 is needed"),
        ("both", annotation(&four, "0a:58:0a:f4:00:01"), "one address of each"),
    ] {
        let effects = state.pods(Watched::Apply(pod(name, name, "Pending", Some(&forged))));
        assert_eq!(ip(&state, name), None);
        let notice = &effects.notices[0];
        assert_eq!(notice.kind, NoticeKind::Malformed);
        assert!(
            notice.message.starts_with(&format!("pod x/{name}: annotation k8s.ovn.org/pod-networks: ")),
            "{}",
            notice.message
        );
        assert!(notice.message.contains(wrong), "{}", notice.message);
        // Without the annotation the pod is as any other.
        state.pods(Watched::Apply(pod(name, name, "Pending", None)));
        assert!(ip(&state, name).is_some());
        state.pods(Watched::Delete(NamespacedName::new("x", name)));
    }
    // An address that the pod chose itself is not accepted either.
    let chosen = annotation(&["10.244.0.99/24"], "0a:58:0a:f4:00:63");
    let effects = state.pods(Watched::Apply(pod("chosen", "chosen", "Pending", Some(&chosen))));
    let given = ip(&state, "chosen").unwrap();
    assert_ne!(given, "10.244.0.99/24");
    assert!(effects.notices[0].message.contains("was not written by the controller"));
    assert!(effects.patches[0].annotations["k8s.ovn.org/pod-networks"].contains(&given));
}

#[test]
fn after_a_restart_a_port_in_the_database_goes_before_an_annotation_that_claims_its_address() {
    let mut state = state("10.244.0.0/16/24");
    let address = IpAddr::from([10, 244, 0, 9]);
    let mac = MacAddr::from_ip(address);
    state.found_ports(vec![FoundPort { uid: "victim".into(), node: "n1".into(), ips: vec![address], mac }]);
    state.nodes(Watched::Reset(vec![node("n1", serde_json::json!({}))]));
    let stolen = annotation(&["10.244.0.9/24"], "0a:58:0a:f4:00:09");
    let effects = state.pods(Watched::Reset(vec![
        pod("a-thief", "thief", "Running", Some(&stolen)),
        pod("victim", "victim", "Running", Some(&stolen)),
    ]));
    assert_eq!(ip(&state, "victim").as_deref(), Some("10.244.0.9/24"));
    assert_eq!(ip(&state, "a-thief"), None);
    assert!(effects.notices[0].message.contains("belongs to another pod"), "{:?}", effects.notices);
}

fn gateway(name: &str, ip: &str) -> String {
    serde_json::json!({"default": {"mode": "shared", "bridge-id": "breth0", "interface-id": format!("breth0_{name}"),
        "mac-address": "02:42:ac:12:00:02", "ip-addresses": [format!("{ip}/16")], "next-hops": ["172.18.0.1"],
        "node-port-enable": "true", "vlan-id": "0"}})
    .to_string()
}

fn told(name: &str, chassis: &str, ip: &str) -> SeenNode {
    node(
        name,
        serde_json::json!({"k8s.ovn.org/node-chassis-id": chassis, "k8s.ovn.org/l3-gateway-config": gateway(name, ip)}),
    )
}

#[test]
fn of_two_nodes_with_one_chassis_or_address_the_first_has_it_and_both_are_told() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(told("n1", "c1", "172.18.0.2")));
    for (clone, has_chassis, has_gateway) in
        [(told("n2", "c1", "172.18.0.3"), false, true), (told("n2", "c2", "172.18.0.2"), true, false)]
    {
        let effects = state.nodes(Watched::Apply(clone.clone()));
        let n2 = &state.index.nodes["n2"];
        assert_eq!((n2.chassis.is_some(), n2.gateway.is_some()), (has_chassis, has_gateway));
        let names: Vec<_> =
            effects.notices.iter().map(|n| n.object.as_ref().unwrap().name.as_str()).collect();
        assert_eq!(names, ["n2", "n1"]);
        assert!(effects.notices.iter().all(|notice| notice.kind == NoticeKind::NodeConflict));
        assert!(state.nodes(Watched::Apply(clone)).notices.is_empty(), "told once");
    }
    assert_eq!(state.index.nodes["n1"].chassis.as_deref(), Some("c1"));
    // When the first is gone, the other one has it.
    state.nodes(Watched::Apply(told("n2", "c1", "172.18.0.2")));
    let effects = state.nodes(Watched::Delete("n1".to_owned()));
    let n2 = &state.index.nodes["n2"];
    assert!(n2.chassis.is_some() && n2.gateway.is_some());
    assert!(effects.dirty.contains(&Unit::Node("n2".to_owned())));
}

#[test]
fn an_uplink_port_of_another_name_than_the_derived_one_is_refused() {
    let mut forged: serde_json::Value = serde_json::from_str(&gateway("n1", "172.18.0.2")).unwrap();
    forged["default"]["interface-id"] = "shop_db-0".into();
    let seen = node("n1", serde_json::json!({"k8s.ovn.org/l3-gateway-config": forged.to_string()}));
    assert_eq!(seen.gateway, None);
    assert!(seen.problems[0].message.contains("`breth0_n1` is needed"), "{}", seen.problems[0].message);
}

#[test]
fn a_pod_whose_port_would_have_the_name_of_an_uplink_gets_none_and_the_node_keeps_its() {
    let mut state = state("10.244.0.0/16/24");
    let clash = |uid: &str| {
        let mut seen = pod("n1", uid, "Pending", None);
        seen.pod.name = NamespacedName::new("breth0", "n1");
        seen
    };
    let name = NamespacedName::new("breth0", "n1");
    // The pod first, the node's gateway later.
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    state.pods(Watched::Apply(clash("u1")));
    assert!(!state.index.pods[&name].addresses.is_empty());
    let effects = state.nodes(Watched::Apply(told("n1", "c1", "172.18.0.2")));
    assert!(state.index.pods[&name].addresses.is_empty());
    assert_eq!(effects.release, ["u1"]);
    assert!(
        effects
            .notices
            .iter()
            .any(|n| n.kind == NoticeKind::NameConflict && n.message.contains("`breth0_n1`"))
    );
    assert!(crate::plan::plan(&state.index, &state.config, &Unit::Pod(name.clone())).is_empty());
    // The gateway first.
    state.pods(Watched::Delete(name.clone()));
    let effects = state.pods(Watched::Apply(clash("u2")));
    assert_eq!(effects.notices[0].kind, NoticeKind::NameConflict);
    assert!(state.index.pods[&name].addresses.is_empty());
}

#[test]
fn a_service_is_told_once_of_addresses_that_are_not_served() {
    use api::service::Service;
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(told("n1", "c1", "172.18.0.2")));
    let service = |external: &str| {
        let object = serde_json::json!({"metadata": {"name": "s", "namespace": "x"},
            "spec": {"clusterIP": "10.97.0.9", "externalIPs": [external], "ports": [{"port": 80}]}});
        Service::from_object(&serde_json::from_value(object).unwrap())
    };
    let effects = state.services(Watched::Apply(service("10.96.0.10")));
    let messages: Vec<_> = effects.notices.iter().map(|notice| notice.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(
        messages[0].contains("external address 10.96.0.10 is not served: it is in 10.96.0.0/16"),
        "{messages:?}"
    );
    assert!(messages[1].contains("10.97.0.9 is in no service range (10.96.0.0/16)"), "{messages:?}");
    let effects = state.services(Watched::Apply(service("172.18.0.2")));
    assert_eq!(effects.notices.len(), 1);
    assert!(effects.notices[0].message.contains("172.18.0.2 is not served: it is the address of a node"));
}

#[test]
fn what_is_written_over_an_annotation_while_it_is_being_written_is_put_right() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    let first = state.pods(Watched::Apply(pod("a", "u1", "Pending", None))).patches;
    let written = |patches: &[Patch]| patches[0].annotations["k8s.ovn.org/pod-networks"].clone();
    let good = written(&first);
    // Written, and seen; then another client overwrites it, all before the answer to our write is here.
    assert!(state.pods(Watched::Apply(pod("a", "u1", "Running", Some(&good)))).patches.is_empty());
    assert!(state.pods(Watched::Apply(pod("a", "u1", "Running", Some("{")))).patches.is_empty());
    let again = state.annotated(&Annotated::Written("u1".to_owned())).patches;
    assert_eq!(written(&again), good);
    // Now it is as it should be: nothing more.
    assert!(state.pods(Watched::Apply(pod("a", "u1", "Running", Some(&good)))).patches.is_empty());
    assert!(state.annotated(&Annotated::Written("u1".to_owned())).patches.is_empty());
    assert_eq!(state.pods(Watched::Apply(pod("a", "u1", "Running", Some("{")))).patches.len(), 1);
}

#[test]
fn the_node_of_a_patch_on_its_way_is_looked_at_again_too() {
    let mut state = state("10.244.0.0/16/24");
    let first = state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    assert_eq!(first.patches[0].annotations.len(), 3);
    let half = serde_json::json!({ "k8s.ovn.org/node-subnets": r#"{"default":["10.244.0.0/24"]}"#,
        "slipstream.dev/cluster-network": state.config.published() });
    assert!(state.nodes(Watched::Apply(node("n1", half))).patches.is_empty());
    let again = state.annotated(&Annotated::Written("n1".to_owned())).patches;
    assert_eq!(again[0].annotations.keys().collect::<Vec<_>>(), [&"k8s.ovn.org/node-id"]);
}

#[test]
fn whose_annotation_is_on_its_way_is_forgotten_when_it_is_gone() {
    let mut state = state("10.244.0.0/16/24");
    state.nodes(Watched::Apply(node("n1", serde_json::json!({}))));
    state.pods(Watched::Apply(pod("a", "u1", "Pending", None)));
    state.pods(Watched::Apply(pod("b", "u2", "Pending", None)));
    state.annotated(&Annotated::Written("u2".to_owned()));
    assert_eq!(state.pods(Watched::Delete(NamespacedName::new("x", "a"))).forgotten, ["u1"]);
    assert!(state.pods(Watched::Delete(NamespacedName::new("x", "b"))).forgotten.is_empty());
    assert_eq!(state.nodes(Watched::Delete("n1".to_owned())).forgotten, ["n1"]);
}
