//! Tests of networks on physical networks, and of peers.

use serde_json::json;

use super::tests_networks::{
    addresses, asking, blue, condition, messages, net1, object, pod_on, report, seen, state,
};
use super::*;
use crate::index::convert::{self, SeenNode};
use crate::index::network::SeenNetwork;

fn node_with(name: &str, physical_networks: &str) -> SeenNode {
    let object = json!({ "metadata": { "name": name, "uid": name,
        "annotations": {"slipstream.dev/physical-networks": physical_networks} } });
    convert::node(serde_json::from_value(object).unwrap()).unwrap()
}

#[test]
fn a_network_of_a_vlan_waits_for_a_node_with_its_physical_network_and_pods_for_theirs() {
    let mut state = state();
    let spec = json!({"reach": "Localnet", "subnets": ["172.16.24.0/24"], "localnet": {"physicalNetwork": "dc", "vlan": 100}});
    state.virtual_networks(Watched::Apply(seen(object("x", "blue", 1, spec))));
    let (ready, reason, message) = condition(&report(&mut state, "blue"), "Ready");
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "NoPhysicalNetwork"));
    assert!(message.contains("no node has a bridge for physical network dc"), "{message}");

    state.nodes(Watched::Apply(node_with("n2", r#"["dc","other"]"#)));
    let (ready, _, message) = condition(&report(&mut state, "blue"), "Ready");
    assert_eq!(ready, "True");
    assert!(message.contains("the nodes that have a bridge for physical network dc"), "{message}");

    let effects = state.pods(Watched::Apply(net1("here")));
    let told = messages(&effects);
    assert!(
        told[0].contains("node n1 has no bridge for physical network dc; `ovn-bridge-mappings`"),
        "{told:?}"
    );
    assert_eq!(effects.notices[0].kind, NoticeKind::Network);
    assert_eq!(addresses(&state, "here"), [""; 0]);
    let there = pod_on("n2", "there", json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1"}]"#}));
    assert_eq!(messages(&state.pods(Watched::Apply(there))), [""; 0]);
    assert_eq!(addresses(&state, "there").len(), 1);

    // The waiting pod runs once its node has it, and the second node is nothing new to the network.
    state.network_reports();
    let effects = state.nodes(Watched::Apply(node_with("n1", r#"["dc"]"#)));
    assert_eq!(addresses(&state, "here").len(), 1, "{:?}", messages(&effects));

    // A node that loses it tells its pods; the last one, the network as well.
    let effects = state.nodes(Watched::Apply(node_with("n2", "[]")));
    let told = messages(&effects);
    assert!(
        told[0].starts_with("pod x/there: ") && told[0].contains("reaches pods of its node alone"),
        "{told:?}"
    );
    assert!(state.nodes(Watched::Apply(node_with("n2", "[]"))).notices.is_empty(), "once");
    state.network_reports();
    state.nodes(Watched::Delete("n1".to_owned()));
    assert_eq!(condition(&report(&mut state, "blue"), "Ready").1, "NoPhysicalNetwork");
}

#[test]
fn static_addresses_on_a_physical_network_are_asked_for_there_and_others_are_not() {
    let mut state = state();
    let physical = json!({"reach": "Localnet", "subnets": ["172.16.24.0/24"], "localnet": {"physicalNetwork": "dc", "vlan": 100}});
    state.virtual_networks(Watched::Apply(seen(object("x", "blue", 1, physical))));
    let isolated = json!({"reach": "Isolated", "subnets": ["172.16.25.0/24"]});
    state.virtual_networks(Watched::Apply(seen(object("x", "red", 2, isolated))));
    state.nodes(Watched::Apply(node_with("n1", r#"["dc"]"#)));
    let mut asks = |pod: &str, network: &str, more: &str| {
        let request = format!(r#"[{{"name":"{network}","interface":"net1"{more}}}]"#);
        let effects = state.pods(Watched::Apply(asking(pod, &request)));
        assert_eq!(messages(&effects), [""; 0]);
        let name = NamespacedName::new("x", pod);
        // Its annotation says the same, and so does a controller that reads it.
        state.index.pods[&name].attachments[0].detect_duplicates
    };
    assert!(asks("a", "blue", r#","ip_address":"172.16.24.77""#));
    assert!(!asks("b", "blue", ""));
    assert!(!asks("c", "red", r#","ip_address":"172.16.25.77""#));
}

fn listing(namespace: &str, name: &str, created: u32, net: &str, peers: &[&str]) -> SeenNetwork {
    seen(object(namespace, name, created, json!({"subnets": [net], "peers": peers})))
}

fn routes(state: &State, name: &str) -> Vec<String> {
    let attachments = &state.index.pods[&NamespacedName::new("x", name)].attachments;
    let all = attachments.iter().flat_map(|one| one.routes.iter().map(move |route| (one, route)));
    all.map(|(one, route)| format!("{} {} via {}", one.interface, route.dest, route.next_hop)).collect()
}

#[test]
fn peers_are_connected_when_both_list_each_other_and_new_pods_have_routes_to_them() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(listing("x", "blue", 1, "172.16.1.0/24", &["red", "y/green"])));
    let (status, reason, message) = condition(&report(&mut state, "blue"), "Peers");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Waiting"));
    assert!(message.contains("x/red must be a network that is ready and lists this one"), "{message}");
    state.pods(Watched::Apply(net1("early")));
    assert!(routes(&state, "early").is_empty());

    // One that does not list it, and one that does.
    state.virtual_networks(Watched::Apply(listing("y", "green", 2, "172.16.2.0/24", &[])));
    let effects = state.virtual_networks(Watched::Apply(listing("x", "red", 3, "172.16.3.0/24", &["blue"])));
    assert!(effects.dirty.contains(&Unit::Network(NamespacedName::new("x", "blue"))), "{:?}", effects.dirty);
    let (_, _, message) = condition(&report(&mut state, "blue"), "Peers");
    assert!(!message.contains("x/red") && message.contains("y/green must be"), "{message}");
    assert_eq!(condition(&report_of(&mut state, "red"), "Peers").1, "Connected");
    assert!(routes(&state, "early").is_empty(), "a pod that runs keeps what it has");
    state.pods(Watched::Apply(net1("late")));
    assert_eq!(routes(&state, "late"), ["net1 172.16.3.0/24 via 172.16.1.1"]);

    // A pod on both has no route to where it is; one that says where a range is gets its own.
    state.pods(Watched::Apply(asking(
        "both",
        r#"[{"name":"blue","interface":"net1"},{"name":"red","interface":"net2"}]"#,
    )));
    assert!(routes(&state, "both").is_empty());
    state.pods(Watched::Apply(asking(
        "own",
        r#"{"ovnNetwork":[{"name":"blue","interface":"net1"}],"ovnNetworkRoutes":[{"dst":"172.16.3.0/24","gw":"172.16.1.9"}]}"#,
    )));
    assert_eq!(routes(&state, "own"), ["net1 172.16.3.0/24 via 172.16.1.9"]);

    let effects = state.virtual_networks(Watched::Delete(NamespacedName::new("x", "red")));
    assert!(effects.dirty.contains(&Unit::Network(NamespacedName::new("x", "blue"))));
    assert!(condition(&report(&mut state, "blue"), "Peers").2.contains("x/red must be"));
}

fn report_of(state: &mut State, name: &str) -> NetworkReport {
    let ready: Vec<_> = state.index.networks.ready.keys().cloned().collect();
    state.networks.touched.extend(ready);
    report(state, name)
}

#[test]
fn peers_with_a_range_in_common_are_a_conflict_and_the_networks_stay_ready() {
    let mut state = state();
    for one in [
        listing("x", "blue", 1, "172.16.1.0/24", &["red", "y/red"]),
        listing("x", "red", 2, "172.16.3.0/24", &["blue"]),
        listing("y", "red", 3, "172.16.3.0/24", &["x/blue"]),
    ] {
        state.virtual_networks(Watched::Apply(one));
    }
    let told = report_of(&mut state, "blue");
    let (status, reason, message) = condition(&told, "Conflict");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "PeerOverlap"));
    assert!(
        message.contains("y/red is not reached: its range 172.16.3.0/24 overlaps 172.16.3.0/24 of x/red"),
        "{message}"
    );
    assert_eq!(condition(&told, "Ready").0, "True");
    assert_eq!(condition(&told, "Peers").0, "False");
}

#[test]
fn a_pod_that_is_the_gateway_keeps_peers_away_until_it_is_gone() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(blue("172.16.1.0/24")));
    let gateway = asking("gw", r#"[{"name":"blue","interface":"net1","ip_address":"172.16.1.1"}]"#);
    state.pods(Watched::Apply(gateway));
    let mut changed = listing("x", "blue", 1, "172.16.1.0/24", &["red"]);
    changed.generation = Some(2);
    state.virtual_networks(Watched::Apply(changed));
    let (status, reason, message) = condition(&report_of(&mut state, "blue"), "Ready");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "GatewayTaken"));
    assert!(
        message.contains("pod x/gw has address 172.16.1.1 there, which the router to peers needs"),
        "{message}"
    );
    let held = addresses(&state, "gw");
    assert_eq!(held, ["172.16.1.1/24"], "the network stays as it was");
    let effects = state.pods(Watched::Delete(NamespacedName::new("x", "gw")));
    assert!(!effects.release.is_empty());
    state.released(&effects.release);
    assert_eq!(condition(&report_of(&mut state, "blue"), "Ready").0, "True");
    let effects = state.pods(Watched::Apply(asking(
        "gw2",
        r#"[{"name":"blue","interface":"net1","ip_address":"172.16.1.1"}]"#,
    )));
    assert!(messages(&effects)[0].contains("gateway"), "{:?}", messages(&effects));
}
