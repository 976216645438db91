//! Tests of pods whose cluster network another plugin has.

use serde_json::{Value, json};

use super::tests_networks::{addresses, blue, messages, pod_on, state};
use super::*;
use crate::index::convert::SeenPod;
use crate::index::network;
use crate::plan;
use crate::unit::Unit;

/// With network `x/blue` and a definition of it.
fn secondary() -> State {
    let mut state = state();
    state.config.default_network = false;
    state.virtual_networks(Watched::Reset(vec![blue("172.16.24.0/24")]));
    let definition = json!({
        "metadata": {"name": "blue", "namespace": "x"}, "spec": {"config": r#"{"cniVersion": "1.0.0", "type": "slipstream-cni"}"#},
    });
    let definition = network::read_definition(&serde_json::from_value(definition).unwrap());
    state.definitions(Some(Watched::Reset(vec![definition])));
    state
}

fn naming(name: &str, written: Option<&str>) -> SeenPod {
    let mut annotations = json!({ "k8s.v1.cni.cncf.io/networks": "blue" });
    if let Some(written) = written {
        annotations["k8s.ovn.org/pod-networks"] = json!(written);
    }
    pod_on("n1", name, annotations)
}

fn ports(state: &State, pod: &str) -> Vec<String> {
    let unit = Unit::Pod(NamespacedName::new("x", pod));
    let items = plan::plan(&state.index, &state.config, &unit);
    let row = |item: &plan::Item| match item {
        plan::Item::Row(row) => Some(row.key.key.to_string()),
        _ => None,
    };
    items.iter().filter_map(row).collect()
}

#[test]
fn a_pod_gets_addresses_ports_and_an_entry_on_virtual_networks_alone() {
    let mut state = secondary();
    let effects = state.pods(Watched::Apply(naming("a", None)));
    assert!(messages(&effects).is_empty(), "{:?}", messages(&effects));
    let annotations = &effects.patches[0].annotations;
    let written = annotations["k8s.ovn.org/pod-networks"].clone();
    let entries: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(entries.as_object().unwrap().keys().collect::<Vec<_>>(), ["x/blue"]);
    assert_eq!(entries["x/blue"]["interface"], "net1");
    assert!(!annotations.contains_key("k8s.v1.cni.cncf.io/network-status"), "that is Multus' own");
    assert_eq!(ports(&state, "a"), ["x.blue_x_a"]);
    assert_eq!(state.index.pods[&NamespacedName::new("x", "a")].addresses, []);

    // What was written is enough, for this controller and for one that is started again.
    state.annotated(&Annotated::Written("a".to_owned()));
    let effects = state.pods(Watched::Apply(naming("a", Some(&written))));
    assert!(effects.patches.is_empty() && effects.notices.is_empty(), "{:?}", messages(&effects));
    let mut later = secondary();
    later.pods_listed = false;
    let effects = later.pods(Watched::Reset(vec![naming("b", None), naming("a", Some(&written))]));
    assert_eq!((effects.patches.len(), messages(&effects)), (1, vec![]), "of b alone");
    assert_eq!(addresses(&later, "a"), addresses(&state, "a"));
    assert_eq!(ports(&later, "a"), ["x.blue_x_a"]);
}

#[test]
fn its_addresses_are_free_when_it_is_gone_and_nobody_else_gets_them_before() {
    let mut state = secondary();
    state.pods(Watched::Apply(naming("a", None)));
    let taken = addresses(&state, "a")[0].clone();
    let ip = taken.split('/').next().unwrap();
    let thief = pod_on(
        "n2",
        "b",
        json!({ "k8s.v1.cni.cncf.io/networks": json!([{"name": "blue", "ips": [ip]}]).to_string() }),
    );
    let effects = state.pods(Watched::Apply(thief));
    assert!(messages(&effects)[0].contains("belongs to another pod (UID a)"), "{:?}", messages(&effects));
    assert!(messages(&effects)[0].ends_with("the pod gets no interface on a virtual network until then"));
    let effects = state.pods(Watched::Delete(NamespacedName::new("x", "a")));
    assert_eq!(effects.release, ["a"]);
    state.released(&effects.release);
    assert_eq!(addresses(&state, "b"), [taken]);
}

#[test]
fn a_pod_that_names_no_network_of_ours_gets_nothing() {
    let mut state = secondary();
    let effects = state.pods(Watched::Apply(pod_on("n1", "a", json!({}))));
    assert!(effects.patches.is_empty() && effects.notices.is_empty(), "{:?}", messages(&effects));
    assert!(ports(&state, "a").is_empty());
    assert_eq!(state.address_counts().1, 0, "nor does it wait");
}

#[test]
fn what_comes_with_the_first_interface_alone_is_refused_by_its_annotation() {
    for (key, value) in [
        ("ovnNetwork", r#"[{"name": "blue", "interface": "net1"}]"#),
        ("ovn", r#"{"ip_address": "10.244.0.77/24"}"#),
    ] {
        let mut state = secondary();
        let effects = state.pods(Watched::Apply(pod_on("n1", "a", json!({ key: value }))));
        let said = messages(&effects)[0];
        assert!(
            said.contains(&format!("annotation {key}: another plugin has the cluster's network")),
            "{said}"
        );
        assert!(effects.patches.is_empty() && addresses(&state, "a").is_empty());
    }
}

#[test]
fn an_entry_of_the_clusters_network_that_somebody_wrote_is_taken_out() {
    let mut state = secondary();
    let forged = r#"{"default":{"ip_addresses":["10.244.0.9/24"],"mac_address":"0a:58:0a:f4:00:09"}}"#;
    let effects = state.pods(Watched::Apply(naming("a", Some(forged))));
    let written = &effects.patches[0].annotations["k8s.ovn.org/pod-networks"];
    assert!(written.contains("x/blue") && !written.contains("default\":"), "{written}");
    assert!(messages(&effects)[0].contains("was not written by the controller"), "{:?}", messages(&effects));
    assert_eq!(ports(&state, "a"), ["x.blue_x_a"]);
}
