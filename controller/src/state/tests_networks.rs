//! Tests of virtual networks and of pods on them.

use serde_json::{Value, json};

use super::*;
use crate::config::Features;
use crate::index::convert::{self, SeenPod};
use crate::index::network::{self, SeenNetwork};

pub(super) fn state() -> State {
    let mut state = State::new(Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: None,
        default_network: true,
        features: Features::ALL,
    });
    for name in ["n1", "n2"] {
        state.nodes(Watched::Apply(node(name)));
    }
    state.pods(Watched::Reset(vec![]));
    state
}

fn node(name: &str) -> SeenNode {
    let object = json!({ "metadata": { "name": name, "uid": name } });
    convert::node(serde_json::from_value(object).unwrap()).unwrap()
}

pub(super) fn object(namespace: &str, name: &str, created: u32, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}-{created}"),
        "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"), "generation": 1}, "spec": spec})
}

pub(super) fn seen(object: Value) -> SeenNetwork {
    network::read(&serde_json::from_value(object).unwrap())
}

pub(super) fn blue(net: &str) -> SeenNetwork {
    seen(object("x", "blue", 1, json!({ "subnets": [net] })))
}

pub(super) fn for_all(namespace: &str, name: &str, created: u32, net: &str) -> SeenNetwork {
    seen(object(namespace, name, created, json!({"scope": "Cluster", "subnets": [net], "reach": "Outside"})))
}

pub(super) fn pod_on(node: &str, name: &str, annotations: Value) -> SeenPod {
    let object = json!({
        "metadata": { "name": name, "namespace": "x", "uid": name, "annotations": annotations },
        "spec": { "nodeName": node, "containers": [] },
    });
    convert::pod(serde_json::from_value(object).unwrap()).unwrap()
}

pub(super) fn asking(name: &str, request: &str) -> SeenPod {
    pod_on("n1", name, json!({ "ovnNetwork": request }))
}

pub(super) fn net1(name: &str) -> SeenPod {
    asking(name, r#"[{"name":"blue","interface":"net1"}]"#)
}

pub(super) fn addresses(state: &State, name: &str) -> Vec<String> {
    let pod = state.index.pods.get(&NamespacedName::new("x", name));
    let attached = pod.into_iter().flat_map(|pod| &pod.attachments).flat_map(|attached| &attached.addresses);
    attached.map(ToString::to_string).collect()
}

pub(super) fn messages(effects: &Effects) -> Vec<&str> {
    effects.notices.iter().map(|notice| notice.message.as_str()).collect()
}

pub(super) fn report(state: &mut State, name: &str) -> NetworkReport {
    let all = state.network_reports();
    all.into_iter().find(|report| report.object.name == name).unwrap_or_else(|| panic!("no report of {name}"))
}

pub(super) fn condition(report: &NetworkReport, kind: &str) -> (String, String, String) {
    let found = report.status.conditions.iter().find(|condition| condition.kind == kind).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn a_pods_annotations_are_written_byte_for_byte() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(for_all("infra", "ovn-ls-24", 1, "172.16.24.0/24")));
    state.virtual_networks(Watched::Apply(for_all("infra", "ovn-ls-26", 2, "172.16.26.0/24")));
    let request = r#"{"ovnNetwork":[{"name":"ovn-ls-26","interface":"net0","defaultGateway":"true"},
        {"name":"ovn-ls-24","interface":"net1","defaultGateway":"false","ip_address":"172.16.24.2/24","mac_address":"0a:00:00:00:00:1e","gateway_ip":"172.16.24.1"},
        {"name":"ovn-ls-24","interface":"net2"}],
        "ovnNetworkRoutes":[{"dst":"172.16.29.1/24","gw":"172.16.24.1"}]}"#;
    let effects = state.pods(Watched::Apply(asking("pod-ovn", request)));
    assert_eq!(messages(&effects), [""; 0]);
    let written = &effects.patches[0].annotations;
    assert_eq!(
        written["k8s.ovn.org/pod-networks"],
        concat!(
            r#"{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","#,
            r#""routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.0.1"},{"dest":"10.96.0.0/16","nextHop":"10.244.0.1"},"#,
            r#"{"dest":"169.254.169.5/32","nextHop":"10.244.0.1"},{"dest":"100.64.0.0/16","nextHop":"10.244.0.1"}],"#,
            r#""ip_address":"10.244.0.3/24","role":"primary"},"#,
            r#""infra/ovn-ls-24":{"ip_addresses":["172.16.24.2/24"],"mac_address":"0a:00:00:00:00:1e","#,
            r#""routes":[{"dest":"172.16.29.0/24","nextHop":"172.16.24.1"}],"ip_address":"172.16.24.2/24","#,
            r#""role":"secondary","interface":"net1","mtu":1400},"#,
            r#""infra/ovn-ls-24/net2":{"ip_addresses":["172.16.24.3/24"],"mac_address":"0a:58:ac:10:18:03","#,
            r#""ip_address":"172.16.24.3/24","role":"secondary","interface":"net2","mtu":1400},"#,
            r#""infra/ovn-ls-26":{"ip_addresses":["172.16.26.2/24"],"mac_address":"0a:58:ac:10:1a:02","#,
            r#""gateway_ips":["172.16.26.1"],"ip_address":"172.16.26.2/24","gateway_ip":"172.16.26.1","#,
            r#""role":"secondary","interface":"net0","mtu":1400}}"#,
        )
    );
    assert_eq!(
        written["ovnIfaceList"],
        concat!(
            r#"[{"ip_address":"172.16.26.2/24","mac_address":"0a:58:ac:10:1a:02","gateway_ip":"172.16.26.1","interface":"net0","defaultGateway":"true"},"#,
            r#"{"ip_address":"172.16.24.2/24","mac_address":"0a:00:00:00:00:1e","gateway_ip":"172.16.24.1","interface":"net1","defaultGateway":"false"},"#,
            r#"{"ip_address":"172.16.24.3/24","mac_address":"0a:58:ac:10:18:03","gateway_ip":"172.16.24.1","interface":"net2","defaultGateway":"false"}]"#,
        )
    );
    // Seen again as it was written: nothing to do, whatever it asks for by then.
    let value = written["k8s.ovn.org/pod-networks"].clone();
    state.annotated(&Annotated::Written("pod-ovn".to_owned()));
    for request in [request, "[]", "{"] {
        let again =
            pod_on("n1", "pod-ovn", json!({"ovnNetwork": request, "k8s.ovn.org/pod-networks": value}));
        let effects = state.pods(Watched::Apply(again));
        assert!(
            effects.patches.is_empty() && effects.notices.is_empty() && effects.dirty.is_empty(),
            "{effects:?}"
        );
    }
    let forged = value.replace("172.16.24.3", "172.16.24.4");
    let again = pod_on("n1", "pod-ovn", json!({"ovnNetwork": request, "k8s.ovn.org/pod-networks": forged}));
    let effects = state.pods(Watched::Apply(again));
    assert_eq!(effects.patches[0].annotations["k8s.ovn.org/pod-networks"], value);
}

#[test]
fn pods_of_two_nodes_share_a_network_and_without_a_request_nothing_changes() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    let request = json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1"}]"#});
    state.pods(Watched::Apply(pod_on("n1", "a", request.clone())));
    state.pods(Watched::Apply(pod_on("n2", "b", request)));
    assert_eq!(
        (addresses(&state, "a"), addresses(&state, "b")),
        (vec!["172.16.24.2/24".into()], vec!["172.16.24.3/24".into()])
    );
    let effects = state.pods(Watched::Apply(pod_on("n1", "plain", json!({}))));
    assert_eq!(effects.patches[0].annotations.len(), 1);
    assert!(
        effects.patches[0].annotations["k8s.ovn.org/pod-networks"]
            .contains(r#""gateway_ip":"10.244.0.1","role":"primary"}}"#)
    );
}

#[test]
fn a_pod_waits_for_its_network_and_is_told_what_is_missing() {
    let mut state = state();
    let effects = state.pods(Watched::Apply(net1("a")));
    assert!(
        messages(&effects)[0].contains("interface net1: there is no virtual network x/blue"),
        "{effects:?}"
    );
    assert!(effects.patches.is_empty() && addresses(&state, "a").is_empty());
    assert!(state.index.pods[&NamespacedName::new("x", "a")].addresses.is_empty(), "nothing half plugged");
    assert!(state.pods(Watched::Apply(net1("a"))).notices.is_empty(), "told once");
    let effects = state.virtual_networks(Watched::Apply(blue("10.244.9.0/24")));
    assert!(
        messages(&effects).iter().any(|text| text.contains("virtual network x/blue: spec.subnets[0]: ")),
        "{effects:?}"
    );
    assert!(
        messages(&effects).iter().any(|text| text.contains("x/blue is not ready: spec.subnets[0]")),
        "{effects:?}"
    );
    let effects = state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    assert_eq!(addresses(&state, "a"), ["172.16.24.2/24"]);
    assert_eq!(effects.patches.len(), 1);
    assert!(effects.dirty.contains(&Unit::Pod(NamespacedName::new("x", "a"))));
    assert!(effects.dirty.contains(&Unit::Network(NamespacedName::new("x", "blue"))));
}

#[test]
fn an_address_that_another_pod_has_is_given_when_the_database_let_go_of_it() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    let asks = |name: &str| {
        asking(
            name,
            r#"[{"name":"blue","interface":"net1"},{"name":"blue","interface":"net2","ip_address":"172.16.24.9"}]"#,
        )
    };
    state.pods(Watched::Apply(asks("a")));
    let effects = state.pods(Watched::Apply(asks("b")));
    assert_eq!(effects.notices[0].kind, NoticeKind::Network);
    assert!(messages(&effects)[0].contains(
        "interface net2: virtual network x/blue: address 172.16.24.9 belongs to another pod (UID a)"
    ));
    let holder = &effects.notices[1];
    assert_eq!(
        (holder.kind, holder.object.as_ref().unwrap().uid.as_str()),
        (NoticeKind::AddressConflict, "a")
    );
    assert!(holder.message.contains("pod x/b asks for its address 172.16.24.9 on virtual network x/blue"));
    assert!(messages(&state.pods(Watched::Apply(asks("b")))).is_empty(), "told once");
    let effects = state.nodes(Watched::Apply(node("n1")));
    assert!(messages(&effects).is_empty(), "{:?}", messages(&effects));
    let effects = state.pods(Watched::Apply(asking("c", r#"[{"name":"none","interface":"net1"}]"#)));
    assert_eq!(effects.notices.len(), 1, "what is told of one pod is about that: {:?}", messages(&effects));
    assert_eq!(state.network_ipam.counts(&NamespacedName::new("x", "blue")).0, 2, "all or nothing");
    let effects = state.pods(Watched::Delete(NamespacedName::new("x", "a")));
    assert_eq!(effects.release, ["a"]);
    assert!(addresses(&state, "b").is_empty());
    state.released(&effects.release);
    assert!(addresses(&state, "b").contains(&"172.16.24.9/24".to_owned()));
}

#[test]
fn a_full_network_is_told_of_and_waited_for() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/30")));
    state.pods(Watched::Apply(net1("a")));
    let effects = state.pods(Watched::Apply(net1("b")));
    assert_eq!(effects.notices[0].kind, NoticeKind::NetworkExhausted);
    assert!(messages(&effects)[0].contains("no free address is left in 172.16.24.0/30"));
    let effects = state.pods(Watched::Apply({
        let mut done = net1("a");
        done.finished = true;
        done
    }));
    state.released(&effects.release);
    assert_eq!(addresses(&state, "b"), ["172.16.24.2/30"]);
}

#[test]
fn a_request_that_cannot_be_read_is_told_of_and_healed_by_another() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    for (request, words) in [
        ("{", "annotation ovnNetwork: it is not JSON"),
        (
            r#"[{"name":"blue","interface":"net1","gateway_ip":"10.0.0.1"}]"#,
            "gateway 10.0.0.1 is not an address of",
        ),
        (
            r#"{"ovnNetwork":[{"name":"blue","interface":"net1"}],"ovnNetworkRoutes":[{"dst":"10.0.0.0/8","gw":"10.0.0.1"}]}"#,
            "annotation ovnNetworkRoutes: the route to 10.0.0.0/8: next hop 10.0.0.1 is an address of none",
        ),
    ] {
        let effects = state.pods(Watched::Apply(asking("a", request)));
        assert!(messages(&effects)[0].contains(words), "{effects:?}");
        assert_eq!(state.network_ipam.counts(&NamespacedName::new("x", "blue")).0, 0);
    }
    state.pods(Watched::Apply(net1("a")));
    assert_eq!(addresses(&state, "a").len(), 1);
}

#[test]
fn a_network_is_looked_up_in_the_pods_namespace_and_then_among_those_for_all() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(for_all("infra", "blue", 1, "172.16.24.0/24")));
    state.virtual_networks(Watched::Apply(seen(object(
        "other",
        "red",
        2,
        json!({"subnets": ["172.16.25.0/24"]}),
    ))));
    state.pods(Watched::Apply(net1("a")));
    assert_eq!(addresses(&state, "a"), ["172.16.24.2/24"]);
    state.virtual_networks(Watched::Apply(blue("172.16.26.0/24")));
    state.pods(Watched::Apply(net1("b")));
    assert_eq!(addresses(&state, "b"), ["172.16.26.2/24"], "the namespace's own goes first");
    state.pods(Watched::Apply(asking("c", r#"[{"name":"infra/blue","interface":"net1"}]"#)));
    assert_eq!(addresses(&state, "c"), ["172.16.24.3/24"]);
    let effects = state.pods(Watched::Apply(asking("d", r#"[{"name":"other/red","interface":"net1"}]"#)));
    assert!(messages(&effects)[0].contains("other/red is for pods of its own namespace"), "{effects:?}");
    let effects = state.pods(Watched::Apply(asking("e", r#"[{"name":"red","interface":"net1"}]"#)));
    assert!(messages(&effects)[0].contains("there is no virtual network x/red"), "{effects:?}");
}

#[test]
fn of_networks_that_overlap_the_older_has_the_range_and_the_other_gets_it_after_it() {
    let mut state = state();
    let young = for_all("b", "young", 2, "172.16.24.0/24");
    let old = for_all("a", "old", 1, "172.16.24.0/25");
    let effects = state.virtual_networks(Watched::Reset(vec![young, old]));
    assert_eq!(effects.notices[0].kind, NoticeKind::NetworkConflict);
    assert!(
        messages(&effects)[0].contains(
            "b/young: spec.subnets: 172.16.24.0/24 overlaps 172.16.24.0/25 of virtual network a/old"
        )
    );
    let (status, reason, _) = condition(&report(&mut state, "young"), "Conflict");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Overlap"));
    state.virtual_networks(Watched::Delete(NamespacedName::new("a", "old")));
    assert!(state.index.networks.ready.contains_key(&NamespacedName::new("b", "young")));
    assert_eq!(condition(&report(&mut state, "young"), "Ready").0, "True");
}

#[test]
fn a_network_gives_way_to_a_node_with_the_name_of_its_switch() {
    let mut state = state();
    let name = NamespacedName::new("infra", "n3");
    state.virtual_networks(Watched::Apply(for_all("infra", "n3", 1, "172.16.24.0/24")));
    let effects = state.nodes(Watched::Apply(node("n3")));
    assert!(
        messages(&effects)[0].contains("would be called `n3`, as the switch of a node is"),
        "{effects:?}"
    );
    assert!(effects.dirty.contains(&Unit::Network(name.clone())) && state.index.networks.ready.is_empty());
    state.nodes(Watched::Delete("n3".to_owned()));
    assert!(state.index.networks.ready.contains_key(&name));
    let effects = state.virtual_networks(Watched::Apply(for_all("infra", "join", 2, "172.16.25.0/24")));
    assert!(messages(&effects)[0].contains("as the join switch is"), "{effects:?}");
}

#[test]
fn a_network_in_use_keeps_its_finalizer_until_its_pods_are_gone() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    let first = report(&mut state, "blue");
    assert!(first.finalizer && first.status.is("Ready") && !first.status.is("InUse"));
    assert_eq!((first.status.addresses_used, first.status.addresses_free), (0, 253));
    state.pods(Watched::Apply(net1("a")));
    let used = report(&mut state, "blue");
    assert!(used.status.is("InUse"));
    assert_eq!((used.status.addresses_used, used.status.addresses_free), (1, 252));

    let mut object = object("x", "blue", 1, json!({"subnets": ["172.16.24.0/24"]}));
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
    object["metadata"]["finalizers"] = json!(["slipstream.dev/virtual-network"]);
    state.virtual_networks(Watched::Apply(seen(object)));
    assert!(report(&mut state, "blue").finalizer);
    assert_eq!(addresses(&state, "a").len(), 1);
    let effects = state.pods(Watched::Apply(net1("late")));
    assert!(messages(&effects)[0].contains("x/blue is being deleted"), "{effects:?}");
    let gone = state.pods(Watched::Delete(NamespacedName::new("x", "a")));
    assert!(state.network_reports().iter().all(|report| report.finalizer), "its port may still be there");
    state.released(&gone.release);
    let last = report(&mut state, "blue");
    assert!(!last.finalizer && !last.status.is("InUse"));
    let effects = state.virtual_networks(Watched::Delete(NamespacedName::new("x", "blue")));
    assert!(effects.dirty.contains(&Unit::Network(NamespacedName::new("x", "blue"))));
    assert!(state.network_reports().is_empty());
}

#[test]
fn what_an_object_holds_already_is_not_written_again() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    let written = report(&mut state, "blue");
    let again = SeenNetwork { status: written.status, finalizer: true, ..blue("172.16.24.0/24") };
    let effects = state.virtual_networks(Watched::Apply(again));
    assert!(state.network_reports().is_empty() && effects.dirty.is_empty());
}

#[test]
fn an_active_network_stays_as_it_was_when_its_object_becomes_wrong() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    state.pods(Watched::Apply(net1("a")));
    let effects = state.virtual_networks(Watched::Apply(blue("nonsense")));
    assert_eq!(effects.notices[0].kind, NoticeKind::Malformed);
    assert!(effects.dirty.is_empty());
    let report = report(&mut state, "blue");
    assert!(
        condition(&report, "Ready").2.ends_with("the previous configuration stays in force"),
        "{report:?}"
    );
    assert_eq!(addresses(&state, "a").len(), 1);
}

#[test]
fn after_a_restart_pods_keep_what_their_annotations_and_ports_say() {
    let mut first = state();
    first.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    first.pods(Watched::Apply(net1("taken")));
    let value =
        first.pods(Watched::Apply(net1("a"))).patches[0].annotations["k8s.ovn.org/pod-networks"].clone();
    assert!(value.contains("172.16.24.3/24"), "{value}");

    let mut state = State::new(first.config.clone());
    let network = NamespacedName::new("x", "blue");
    let port = |uid: &str, last: u8| FoundAttachment {
        network: network.clone(),
        owner: Owner { uid: uid.to_owned(), key: "x/blue".to_owned() },
        ips: vec![StaticIp { ip: IpAddr::from([172, 16, 24, last]), prefix_len: None }],
        mac: MacAddr::from_ip(IpAddr::from([172, 16, 24, last])),
    };
    state.found_attachments(vec![port("b", 7), port("gone", 2)]);
    state.nodes(Watched::Reset(vec![node("n1")]));
    state.virtual_networks(Watched::Reset(vec![blue("172.16.24.0/24")]));
    // What it asks for was made unreadable while nobody looked: it runs, and keeps what it has.
    let annotated = pod_on("n1", "a", json!({"ovnNetwork": "{", "k8s.ovn.org/pod-networks": value}));
    let effects = state.pods(Watched::Reset(vec![net1("new"), annotated, net1("b")]));
    assert_eq!(messages(&effects), [""; 0]);
    assert_eq!(addresses(&state, "a"), ["172.16.24.3/24"]);
    assert_eq!(addresses(&state, "b"), ["172.16.24.7/24"]);
    assert_eq!(addresses(&state, "new"), ["172.16.24.8/24"]);
    assert_eq!(effects.release, ["gone"], "its port still has the address");
}

#[test]
fn pods_keep_their_addresses_when_a_network_is_made_again() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    state.pods(Watched::Apply(net1("a")));
    let name = NamespacedName::new("x", "blue");
    let effects = state.virtual_networks(Watched::Delete(name.clone()));
    assert!(effects.dirty.contains(&Unit::Pod(NamespacedName::new("x", "a"))));
    let again = seen(object("x", "blue", 5, json!({"subnets": ["172.16.24.0/24"]})));
    let effects = state.virtual_networks(Watched::Apply(again));
    assert!(effects.dirty.contains(&Unit::Pod(NamespacedName::new("x", "a"))) && effects.notices.is_empty());
    assert_eq!(state.network_ipam.counts(&name).0, 1);
    state.virtual_networks(Watched::Delete(name));
    let other = seen(object("x", "blue", 6, json!({"subnets": ["172.16.99.0/24"]})));
    let effects = state.virtual_networks(Watched::Apply(other));
    assert!(
        messages(&effects)[0].contains("172.16.24.2 is not in 172.16.99.0/24; the pod must be made again"),
        "{effects:?}"
    );
}

#[test]
fn a_host_network_pod_that_asks_is_told_once() {
    let mut state = state();
    let host = || {
        let mut seen = net1("a");
        seen.pod.host_network = true;
        seen
    };
    let effects = state.pods(Watched::Apply(host()));
    assert!(messages(&effects)[0].contains("a pod with hostNetwork has no interfaces of its own"));
    assert!(state.pods(Watched::Apply(host())).notices.is_empty());
}

#[test]
fn the_work_of_a_change_does_not_grow_with_the_number_of_networks() {
    let mut state = state();
    let spec = |at: u32| match at % 2 {
        0 => json!({"subnets": ["192.168.0.0/24"]}),
        _ => {
            json!({"scope": "Cluster", "reach": "Outside", "subnets": [format!("172.{}.{}.0/24", 20 + at / 256, at % 256)]})
        }
    };
    for at in 0..1_000 {
        let name = format!("net-{at}");
        let effects = state.virtual_networks(Watched::Apply(seen(object("x", &name, 1, spec(at)))));
        let nodes = if at % 2 == 0 { 0 } else { 2 };
        assert_eq!((effects.dirty.len(), effects.notices.len()), (1 + nodes, 0), "{name}");
        assert_eq!(state.network_reports().len(), 1);
    }
    assert_eq!(state.index.networks.ready.len(), 1_000);
    let effects = state.pods(Watched::Apply(asking("a", r#"[{"name":"net-7","interface":"net1"}]"#)));
    assert_eq!(effects.dirty.len(), 1);
    assert_eq!(state.network_reports().len(), 1);
    let effects = state.virtual_networks(Watched::Delete(NamespacedName::new("x", "net-8")));
    assert_eq!(effects.dirty.len(), 1);
    let rows: usize = state
        .units()
        .iter()
        .map(|unit| crate::plan::plan(&state.index, &state.config, unit))
        .map(|items| items.len())
        .sum();
    // A switch; where it reaches the outside, two ports and two edges, and a route and its edge.
    assert!((499 + 500 * 7..499 + 500 * 7 + 200).contains(&rows), "{rows}");
}

#[test]
fn an_annotation_that_was_forged_while_no_controller_ran_gives_no_network_of_others() {
    let others = seen(object("other", "red", 1, json!({"subnets": ["172.16.24.0/24"]})));
    let entry = |key: &str| {
        json!({"default": {"ip_addresses": ["10.244.0.9/24"], "mac_address": "0a:58:0a:f4:00:09"},
            key: {"ip_addresses": ["172.16.24.9/24"], "mac_address": "0a:58:ac:10:18:09", "role": "secondary", "interface": "net1"}})
        .to_string()
    };
    let mut state = State::new(state().config);
    state.nodes(Watched::Reset(vec![node("n1")]));
    state.virtual_networks(Watched::Reset(vec![others]));
    let thief = pod_on("n1", "thief", json!({"k8s.ovn.org/pod-networks": entry("other/red")}));
    let effects = state.pods(Watched::Reset(vec![thief]));
    assert!(addresses(&state, "thief").is_empty());
    assert_eq!(state.network_ipam.counts(&NamespacedName::new("other", "red")).0, 0);
    assert!(
        !effects.patches[0].annotations["k8s.ovn.org/pod-networks"].contains("other/red"),
        "it is written again without"
    );
    // Nor later, by one that is not known yet.
    let mut state = State::new(state.config);
    state.nodes(Watched::Reset(vec![node("n1")]));
    let early = pod_on("n1", "early", json!({"k8s.ovn.org/pod-networks": entry("other/red")}));
    state.pods(Watched::Reset(vec![early]));
    let others = seen(object("other", "red", 1, json!({"subnets": ["172.16.24.0/24"]})));
    state.virtual_networks(Watched::Apply(others));
    let items = crate::plan::plan(&state.index, &state.config, &Unit::Pod(NamespacedName::new("x", "early")));
    assert!(!format!("{items:?}").contains("172.16.24.9"), "{items:?}");
}
