//! Tests of pods that ask for an address on the cluster's network.

use serde_json::json;

use super::tests_networks::{messages, pod_on, state};
use super::*;
use crate::index::convert::SeenPod;

fn asking(name: &str, value: &str) -> SeenPod {
    pod_on("n1", name, json!({ "ovn": value }))
}

fn has(state: &State, name: &str) -> (Vec<String>, Option<String>) {
    let pod = &state.index.pods[&NamespacedName::new("x", name)];
    (pod.addresses.iter().map(ToString::to_string).collect(), pod.mac.map(|mac| mac.to_string()))
}

const WISH: &str = r#"{"ip_address": "10.244.0.77/24", "mac_address": "0a:00:00:00:00:15"}"#;

#[test]
fn a_pod_of_one_interface_gets_the_address_that_it_asks_for() {
    let mut state = state();
    let effects = state.pods(Watched::Apply(asking("a", WISH)));
    assert!(effects.notices.is_empty(), "{:?}", messages(&effects));
    assert_eq!(has(&state, "a"), (vec!["10.244.0.77/24".to_owned()], Some("0a:00:00:00:00:15".to_owned())));
    let written = &effects.patches[0].annotations["k8s.ovn.org/pod-networks"];
    assert!(written.contains("10.244.0.77/24") && written.contains("0a:00:00:00:00:15"), "{written}");
    // A controller that is started again believes what was written.
    let mut later = tests_networks::state();
    let kept = pod_on("n1", "a", json!({"ovn": WISH, "k8s.ovn.org/pod-networks": written}));
    later.pods_listed = false;
    let effects = later.pods(Watched::Reset(vec![kept]));
    assert!(effects.patches.is_empty() && effects.notices.is_empty(), "{:?}", messages(&effects));
    assert_eq!(has(&later, "a"), has(&state, "a"));
}

#[test]
fn what_it_asks_for_later_is_nothing_to_a_pod_that_runs() {
    let mut state = state();
    state.pods(Watched::Apply(pod_on("n1", "a", json!({}))));
    let before = has(&state, "a");
    let effects = state.pods(Watched::Apply(asking("a", WISH)));
    assert_eq!(has(&state, "a"), before);
    assert!(effects.notices.is_empty(), "{:?}", messages(&effects));
}

#[test]
fn a_pod_waits_for_an_address_that_another_has_and_gets_it_then() {
    let mut state = state();
    state.pods(Watched::Apply(asking("a", WISH)));
    let effects = state.pods(Watched::Apply(asking("b", r#"{"ip_address": "10.244.0.77"}"#)));
    let said = messages(&effects);
    assert!(
        said[0].contains("pod x/b: annotation ovn: address 10.244.0.77 belongs to another pod (UID a)"),
        "{said:?}"
    );
    assert!(has(&state, "b").0.is_empty());
    let effects = state.pods(Watched::Delete(NamespacedName::new("x", "a")));
    state.released(&effects.release);
    assert_eq!(has(&state, "b").0, ["10.244.0.77/24"]);
}

#[test]
fn a_pod_that_asks_wrongly_waits_until_it_asks_well() {
    let mut state = state();
    for (value, says) in [
        (
            r#"{"ip_address": "10.244.1.77"}"#,
            "annotation ovn: address 10.244.1.77 is not a pod address of node n1 (10.244.0.0/24)",
        ),
        (r#"{"ip_address": "10.244.0.x"}"#, "annotation ovn: `ip_address`: `10.244.0.x` is no address"),
        ("10.244.0.77", "annotation ovn: it is not JSON"),
    ] {
        let effects = state.pods(Watched::Apply(asking("a", value)));
        let said = messages(&effects);
        assert!(said.iter().any(|message| message.contains(says)), "{said:?}");
        assert!(has(&state, "a").0.is_empty());
    }
    state.pods(Watched::Apply(asking("a", WISH)));
    assert_eq!(has(&state, "a").0, ["10.244.0.77/24"]);
}

#[test]
fn a_pod_that_asks_for_networks_by_name_asks_for_nothing_else() {
    let mut state = state();
    state.virtual_networks(Watched::Apply(tests_networks::blue("172.16.24.0/24")));
    let both = json!({"ovn": WISH, "ovnNetwork": r#"[{"name":"blue","interface":"net1"}]"#});
    state.pods(Watched::Apply(pod_on("n1", "a", both)));
    assert_eq!(has(&state, "a").0, ["10.244.0.3/24"]);
}
