//! Tests of pods that name NetworkAttachmentDefinitions.

use serde_json::{Value, json};

use super::tests_networks::{addresses, blue, for_all, messages, object, pod_on, state};
use super::*;
use crate::index::convert::SeenPod;
use crate::index::network::{self, SeenDefinition};

fn definition(name: &str, config: &Value) -> SeenDefinition {
    let object =
        json!({"metadata": {"name": name, "namespace": "x"}, "spec": {"config": config.to_string()}});
    network::read_definition(&serde_json::from_value(object).unwrap())
}

fn ours(name: &str, network: &str) -> SeenDefinition {
    definition(name, &json!({"cniVersion": "1.0.0", "type": "slipstream-cni", "network": network}))
}

fn foreign(name: &str) -> SeenDefinition {
    definition(name, &json!({"cniVersion": "1.0.0", "type": "macvlan"}))
}

fn naming(pod: &str, networks: &str) -> SeenPod {
    pod_on("n1", pod, json!({ "k8s.v1.cni.cncf.io/networks": networks }))
}

/// With these definitions, and the networks `x/blue` and, for all namespaces, `y/red`.
fn with(definitions: Vec<SeenDefinition>) -> State {
    let mut state = state();
    state.virtual_networks(Watched::Reset(vec![
        blue("172.16.24.0/24"),
        for_all("y", "red", 1, "172.16.25.0/24"),
    ]));
    state.definitions(Some(Watched::Reset(definitions)));
    state
}

fn interfaces(state: &State, pod: &str) -> Vec<(String, String)> {
    let pod = state.index.pods.get(&NamespacedName::new("x", pod));
    let attached = pod.into_iter().flat_map(|pod| &pod.attachments);
    attached.map(|attached| (attached.interface.clone(), attached.network.to_string())).collect()
}

fn pair(interface: &str, network: &str) -> (String, String) {
    (interface.to_owned(), network.to_owned())
}

#[test]
fn a_pod_gets_an_interface_for_each_definition_of_ours_numbered_by_its_place_among_all() {
    let mut state = with(vec![ours("blue", "blue"), foreign("other"), ours("far", "y/red")]);
    let effects = state.pods(Watched::Apply(naming("a", "blue,other,far")));
    assert!(messages(&effects).is_empty(), "{:?}", messages(&effects));
    assert_eq!(interfaces(&state, "a"), [pair("net1", "x/blue"), pair("net3", "y/red")]);
    let status = &effects.patches[0].annotations["k8s.v1.cni.cncf.io/network-status"];
    let status: Value = serde_json::from_str(status).unwrap();
    let names: Vec<_> = status.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["slipstream", "x/blue", "x/far"]);
    assert_eq!(status[1]["interface"], "net1");
    assert_eq!((&status[0]["default"], &status[1]["default"]), (&json!(true), &Value::Null));
}

#[test]
fn a_pod_that_names_only_others_is_as_any_pod() {
    let mut state = with(vec![foreign("other")]);
    let effects = state.pods(Watched::Apply(naming("a", "other")));
    assert!(messages(&effects).is_empty());
    assert_eq!(effects.patches[0].annotations.len(), 1, "no list and no status of ours");
    assert_eq!(interfaces(&state, "a"), []);
}

#[test]
fn where_the_kind_is_not_known_the_annotation_is_nobodys() {
    let mut state = state();
    state.definitions(None);
    let effects = state.pods(Watched::Apply(naming("a", "blue")));
    assert!(messages(&effects).is_empty());
    assert_eq!(effects.patches.len(), 1);
}

#[test]
fn a_pod_waits_for_its_definition_and_then_for_the_network() {
    let mut state = state();
    state.definitions(Some(Watched::Reset(vec![])));
    let effects = state.pods(Watched::Apply(naming("a", "blue")));
    assert!(messages(&effects)[0].contains("there is no NetworkAttachmentDefinition x/blue"));
    assert!(effects.patches.is_empty());
    let effects = state.definitions(Some(Watched::Apply(ours("blue", "blue"))));
    assert!(messages(&effects)[0].contains("there is no virtual network x/blue"), "{:?}", messages(&effects));
    let effects = state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
    assert_eq!(effects.patches.len(), 1);
    assert_eq!(addresses(&state, "a"), ["172.16.24.2/24"]);
}

#[test]
fn a_pod_that_waits_goes_on_when_the_kind_goes_or_the_definition_is_of_another_plugin() {
    for last in [None, Some(Watched::Apply(foreign("blue"))), Some(Watched::Reset(vec![foreign("blue")]))] {
        let mut state = state();
        state.definitions(Some(Watched::Reset(vec![])));
        state.pods(Watched::Apply(naming("a", "blue")));
        assert_eq!(state.address_counts(), (0, 1));
        assert_eq!(state.definitions(last).patches.len(), 1);
        assert_eq!(state.address_counts(), (1, 0));
    }
}

#[test]
fn a_pod_whose_annotation_cannot_be_read_goes_on_when_the_kind_goes() {
    let mut state = with(vec![]);
    state.pods(Watched::Apply(naming("a", "[{")));
    assert_eq!(state.address_counts(), (0, 1));
    assert_eq!(state.definitions(None).patches.len(), 1);
    assert_eq!(state.address_counts(), (1, 0));
}

#[test]
fn a_running_pod_keeps_what_it_has_whatever_becomes_of_its_definition() {
    let mut state = with(vec![ours("blue", "blue")]);
    state.pods(Watched::Apply(naming("a", "blue")));
    let before = interfaces(&state, "a");
    assert_eq!(before, [pair("net1", "x/blue")]);
    for change in [
        Some(Watched::Delete(NamespacedName::new("x", "blue"))),
        Some(Watched::Apply(ours("blue", "y/red"))),
        None,
    ] {
        let effects = state.definitions(change);
        assert!(effects.patches.is_empty() && effects.dirty.is_empty());
        state.pods(Watched::Apply(naming("a", "blue")));
        assert_eq!(interfaces(&state, "a"), before);
    }
}

#[test]
fn a_network_of_another_namespace_is_not_reached_by_a_definition() {
    let mut state = with(vec![]);
    state.virtual_networks(Watched::Apply(network::read(
        &serde_json::from_value(object("z", "own", 1, json!({"subnets": ["172.16.26.0/24"]}))).unwrap(),
    )));
    state.definitions(Some(Watched::Apply(ours("own", "z/own"))));
    let effects = state.pods(Watched::Apply(naming("a", "own")));
    assert!(messages(&effects)[0].contains("is for pods of its own namespace"), "{:?}", messages(&effects));
}

#[test]
fn both_annotations_together_have_one_default_route_and_each_name_once() {
    let definitions = || vec![ours("blue", "blue"), ours("red", "y/red")];
    for (own, selected, words) in [
        (
            r#"[{"name":"blue","interface":"net1"}]"#,
            r#"[{"name":"red"}]"#,
            "interface net1 is asked for twice",
        ),
        (
            r#"[{"name":"blue","interface":"net7","defaultGateway":"true"}]"#,
            r#"[{"name":"red","default-route":["172.16.25.1"]}]"#,
            "the default route is asked for by net7 and net1",
        ),
        ("[]", r#"[{"name":"red","default-route":["10.0.0.1"]}]"#, "gateway 10.0.0.1 is not an address"),
        ("[]", r#"[{"name":"red","ips":["172.16.99.5"]}]"#, "172.16.99.5"),
        ("[]", "[{", "it is not JSON"),
    ] {
        let mut state = with(definitions());
        let annotations = json!({ "ovnNetwork": own, "k8s.v1.cni.cncf.io/networks": selected });
        let effects = state.pods(Watched::Apply(pod_on("n1", "a", annotations)));
        assert_eq!(effects.patches, [], "{selected}");
        assert!(messages(&effects)[0].contains(words), "{:?}", messages(&effects));
    }
}
