//! Tests of claims and of pods that use them.

use serde_json::{Value, json};

use super::super::tests_networks::{addresses, blue, messages, object, pod_on, seen, state};
use super::super::*;
use super::*;
use crate::index::convert::{self, SeenPod};
use crate::index::network::{self, SeenNetwork};

const OURS: &str = r#"{"type": "slipstream-cni", "network": "blue"}"#;

fn claim(name: &str, ips: &[&str], requests: &[&str]) -> SeenClaim {
    let mut object = json!({"metadata": {"namespace": "x", "name": name, "uid": format!("uid-of-{name}")},
        "spec": {"network": "blue", "interface": "net1"}});
    if !ips.is_empty() {
        object["status"] = json!({"ips": ips, "ownerPod": "before"});
    }
    if !requests.is_empty() {
        object["spec"]["ipRequests"] = json!(requests);
    }
    network::read_claim(&serde_json::from_value(object).unwrap())
}

/// A pod that names claim `db`.
fn naming(name: &str) -> SeenPod {
    let networks = r#"[{"name": "blue", "interface": "net1", "ipam-claim-reference": "db"}]"#;
    pod_on("n1", name, json!({ "k8s.v1.cni.cncf.io/networks": networks }))
}

/// A life of pod `web-0` of a StatefulSet.
fn of_set(life: &str, node: &str) -> SeenPod {
    let object = json!({
        "metadata": { "name": "web-0", "namespace": "x", "uid": life,
            "annotations": {"ovnNetwork": r#"[{"name": "blue", "interface": "net1"}]"#},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set", "controller": true}] },
        "spec": { "nodeName": node, "containers": [] },
    });
    convert::pod(serde_json::from_value(object).unwrap()).unwrap()
}

fn persistent() -> SeenNetwork {
    seen(object("x", "blue", 1, json!({"subnets": ["172.16.24.0/24"], "ipam": {"lifecycle": "Persistent"}})))
}

fn with(network: SeenNetwork, claims: Vec<SeenClaim>) -> State {
    let mut state = state();
    state.virtual_networks(Watched::Apply(network));
    let definition = json!({"metadata": {"name": "blue", "namespace": "x"}, "spec": {"config": OURS}});
    let definition = network::read_definition(&serde_json::from_value(definition).unwrap());
    state.definitions(Some(Watched::Reset(vec![definition])));
    state.ipam_claims(Some(Watched::Reset(claims)));
    state.claim_reports();
    state
}

/// The pod is gone, and its ports as well.
fn gone(state: &mut State, name: &str) -> Effects {
    let mut effects = state.pods(Watched::Delete(NamespacedName::new("x", name)));
    effects.merge(state.released(&effects.release.clone()));
    effects
}

fn delete(state: &mut State, name: &str) -> Effects {
    state.ipam_claims(Some(Watched::Delete(NamespacedName::new("x", name))))
}

fn written(report: &ClaimReport) -> (String, Vec<String>, String) {
    let status = report.status.as_ref().unwrap();
    let ips = status.ips.iter().map(ToString::to_string).collect();
    (report.object.name.clone(), ips, status.pod.clone())
}

fn expect(name: &str, ip: &str, pod: &str) -> (String, Vec<String>, String) {
    (name.to_owned(), vec![ip.to_owned()], pod.to_owned())
}

#[test]
fn a_pod_that_names_a_claim_leaves_its_address_to_the_next_one() {
    let mut state = with(blue("172.16.24.0/24"), vec![claim("db", &[], &[])]);
    assert!(messages(&state.pods(Watched::Apply(naming("a")))).is_empty());
    assert_eq!(addresses(&state, "a"), ["172.16.24.2/24"]);
    let reports = state.claim_reports();
    assert_eq!(reports.iter().map(written).collect::<Vec<_>>(), [expect("db", "172.16.24.2/24", "a")]);
    assert_eq!((reports[0].object.uid.as_str(), &reports[0].new), ("uid-of-db", &None));
    let mut second = naming("b");
    let effects = state.pods(Watched::Apply(second.clone()));
    assert!(
        messages(&effects)[0].contains("IPAMClaim x/db is in use by interface net1 of pod x/a"),
        "{:?}",
        messages(&effects)
    );
    assert!(messages(&gone(&mut state, "a")).is_empty());
    assert_eq!(addresses(&state, "b"), ["172.16.24.2/24"], "it waited");
    assert_eq!(
        state.claim_reports().iter().map(written).collect::<Vec<_>>(),
        [expect("db", "172.16.24.2/24", "b")]
    );
    // Another annotation changes nothing for a pod that runs.
    second.selections = naming("b").selections.map(|_| Vec::new());
    state.pods(Watched::Apply(second));
    gone(&mut state, "b");
    state.pods(Watched::Apply(pod_on(
        "n1",
        "c",
        json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1","ip_address":"172.16.24.2"}]"#}),
    )));
    assert!(addresses(&state, "c").is_empty(), "the claim keeps it");
    assert!(messages(&delete(&mut state, "db")).is_empty());
    assert_eq!(addresses(&state, "c"), ["172.16.24.2/24"]);
}

#[test]
fn what_is_wrong_with_a_claim_is_told_and_heals() {
    let mut state = with(blue("172.16.24.0/24"), Vec::new());
    let effects = state.pods(Watched::Apply(naming("a")));
    assert!(messages(&effects)[0].contains("there is no IPAMClaim x/db"), "{:?}", messages(&effects));
    let mut bad = claim("db", &[], &[]);
    bad.claim = Err("spec.network is missing".to_owned());
    let effects = state.ipam_claims(Some(Watched::Apply(bad)));
    assert!(
        messages(&effects)[0].contains("IPAMClaim x/db: spec.network is missing"),
        "{:?}",
        messages(&effects)
    );
    let far = SeenClaim {
        claim: claim("db", &[], &[])
            .claim
            .map(|claim| Claim { ips: vec!["10.9.0.1/8".parse().unwrap()], ..claim }),
        ..claim("db", &[], &[])
    };
    let effects = state.ipam_claims(Some(Watched::Apply(far)));
    let told = messages(&effects).join("; ");
    assert!(told.contains("status.ips: virtual network x/blue: address 10.9.0.1 is not in"), "{told}");
    assert!(addresses(&state, "a").is_empty());
    assert!(
        messages(&state.ipam_claims(Some(Watched::Apply(claim("db", &["172.16.24.77/24"], &[]))))).is_empty()
    );
    assert_eq!(addresses(&state, "a"), ["172.16.24.77/24"]);
}

#[test]
fn a_claim_whose_address_a_pod_has_gets_it_when_that_is_gone() {
    let mut state = with(blue("172.16.24.0/24"), Vec::new());
    state.pods(Watched::Apply(pod_on(
        "n1",
        "other",
        json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1"}]"#}),
    )));
    let effects = state.ipam_claims(Some(Watched::Apply(claim("db", &["172.16.24.2/24"], &[]))));
    assert!(
        messages(&effects)[0].contains("address 172.16.24.2 belongs to another pod"),
        "{:?}",
        messages(&effects)
    );
    state.pods(Watched::Apply(naming("a")));
    assert!(addresses(&state, "a").is_empty());
    gone(&mut state, "other");
    assert_eq!(addresses(&state, "a"), ["172.16.24.2/24"]);
}

#[test]
fn a_claim_may_ask_for_an_address() {
    let mut state = with(blue("172.16.24.0/24"), vec![claim("db", &[], &["172.16.24.66/24"])]);
    state.pods(Watched::Apply(naming("a")));
    assert_eq!(addresses(&state, "a"), ["172.16.24.66/24"]);
    assert_eq!(
        state.claim_reports().iter().map(written).collect::<Vec<_>>(),
        [expect("db", "172.16.24.66/24", "a")]
    );
}

#[test]
fn a_statefulsets_pod_keeps_its_address_on_another_node_with_a_claim_that_is_made() {
    let mut state = with(persistent(), Vec::new());
    state.pods(Watched::Apply(of_set("life1", "n1")));
    let reports = state.claim_reports();
    assert_eq!(
        reports.iter().map(written).collect::<Vec<_>>(),
        [expect("web-0.net1", "172.16.24.2/24", "web-0")]
    );
    let new = reports[0].new.clone().unwrap();
    assert_eq!(
        (new.network.as_str(), new.interface.as_str(), new.set.uid.as_str()),
        ("x/blue", "net1", "set")
    );
    // The API server has it, first without its status.
    for ips in [&[][..], &["172.16.24.2/24"]] {
        let made = SeenClaim {
            claim: claim("web-0.net1", ips, &[]).claim.map(|one| Claim { pod: "web-0".to_owned(), ..one }),
            ..claim("web-0.net1", ips, &[])
        };
        assert!(messages(&state.ipam_claims(Some(Watched::Apply(made)))).is_empty());
        assert_eq!(
            state.claim_reports().len(),
            usize::from(ips.is_empty()),
            "what is written is not written again"
        );
    }
    gone(&mut state, "web-0");
    state.pods(Watched::Apply(pod_on(
        "n1",
        "other",
        json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1"}]"#}),
    )));
    assert_eq!(addresses(&state, "other"), ["172.16.24.3/24"]);
    state.pods(Watched::Apply(of_set("life2", "n2")));
    assert_eq!(addresses(&state, "web-0"), ["172.16.24.2/24"]);
    assert!(state.claim_reports().is_empty());
}

#[test]
fn the_next_life_waits_without_a_word_until_the_ports_of_the_last_one_are_gone() {
    let mut state = with(persistent(), Vec::new());
    state.pods(Watched::Apply(of_set("life1", "n1")));
    let effects = state.pods(Watched::Delete(NamespacedName::new("x", "web-0")));
    assert_eq!(effects.release, ["life1"]);
    assert!(messages(&state.pods(Watched::Apply(of_set("life2", "n2")))).is_empty());
    assert!(addresses(&state, "web-0").is_empty());
    assert!(messages(&state.released(&effects.release)).is_empty());
    assert_eq!(addresses(&state, "web-0").len(), 1);
}

#[test]
fn a_claim_that_is_never_made_keeps_nothing_when_its_pod_is_gone() {
    let mut state = with(persistent(), Vec::new());
    state.pods(Watched::Apply(of_set("life1", "n1")));
    assert!(state.claim_reports()[0].status.is_some());
    gone(&mut state, "web-0");
    let reports = state.claim_reports();
    assert_eq!((reports.len(), &reports[0].status), (1, &None), "it is not made any more");
    state.pods(Watched::Apply(pod_on(
        "n1",
        "other",
        json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1","ip_address":"172.16.24.2"}]"#}),
    )));
    assert_eq!(addresses(&state, "other"), ["172.16.24.2/24"]);
}

#[test]
fn a_network_without_the_word_and_pods_of_no_set_have_no_claims() {
    let mut state = with(blue("172.16.24.0/24"), Vec::new());
    state.pods(Watched::Apply(of_set("life1", "n1")));
    assert!(state.claim_reports().is_empty());
    let mut state = with(persistent(), Vec::new());
    state.pods(Watched::Apply(pod_on(
        "n1",
        "a",
        json!({"ovnNetwork": r#"[{"name":"blue","interface":"net1"}]"#}),
    )));
    assert!(state.claim_reports().is_empty());
}

#[test]
fn where_the_kind_is_not_known_the_pod_waits_until_it_is() {
    let mut state = with(persistent(), Vec::new());
    state.ipam_claims(None);
    let effects = state.pods(Watched::Apply(of_set("life1", "n1")));
    assert!(
        messages(&effects)[0].contains("the API server does not know IPAMClaims"),
        "{:?}",
        messages(&effects)
    );
    state.ipam_claims(Some(Watched::Reset(Vec::new())));
    assert_eq!(addresses(&state, "web-0"), ["172.16.24.2/24"]);
}

#[test]
fn a_controller_that_starts_finds_the_claim_of_a_pod_that_runs() {
    let mut first = with(persistent(), Vec::new());
    let patches = first.pods(Watched::Apply(of_set("life1", "n1"))).patches;
    let mut pod = json!({
        "metadata": { "name": "web-0", "namespace": "x", "uid": "life1", "annotations": patches[0].annotations.clone(),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set", "controller": true}] },
        "spec": { "nodeName": "n1", "containers": [] },
    });
    pod["metadata"]["annotations"]["ovnNetwork"] = json!(r#"[{"name": "blue", "interface": "net1"}]"#);
    let running = convert::pod(serde_json::from_value(pod).unwrap()).unwrap();
    let port = || FoundAttachment {
        network: NamespacedName::new("x", "blue"),
        owner: Owner { uid: "life1".to_owned(), key: "x/blue".to_owned() },
        ips: vec![StaticIp { ip: "172.16.24.2".parse().unwrap(), prefix_len: None }],
        mac: "0a:58:ac:10:18:02".parse().unwrap(),
    };
    // The claim was written before the controller ended, or was not.
    for claims in [vec![claim("web-0.net1", &["172.16.24.2/24"], &[])], Vec::new()] {
        let is_new = claims.is_empty();
        let mut second = State::new(first.config.clone());
        second.found_attachments(vec![port()]);
        for name in ["n1", "n2"] {
            let node = json!({ "metadata": { "name": name, "uid": name } });
            second.nodes(Watched::Apply(convert::node(serde_json::from_value(node).unwrap()).unwrap()));
        }
        second.virtual_networks(Watched::Apply(persistent()));
        second.ipam_claims(Some(Watched::Reset(claims)));
        assert!(messages(&second.pods(Watched::Reset(vec![running.clone()]))).is_empty());
        let reports = second.claim_reports();
        assert_eq!(
            reports.iter().map(written).collect::<Vec<_>>(),
            [expect("web-0.net1", "172.16.24.2/24", "web-0")]
        );
        assert_eq!(reports[0].new.is_some(), is_new);
        gone(&mut second, "web-0");
        second.pods(Watched::Apply(of_set("life2", "n2")));
        // A claim that was not made yet when the pod went keeps nothing, but the address rests.
        let again = addresses(&second, "web-0");
        assert_eq!(again == ["172.16.24.2/24"], !is_new, "{again:?}");
    }
}

#[test]
fn a_network_that_is_made_again_has_its_claims_again() {
    let mut state = with(blue("172.16.24.0/24"), vec![claim("db", &["172.16.24.9/24"], &[])]);
    state.virtual_networks(Watched::Delete(NamespacedName::new("x", "blue")));
    let other: Value = json!({"subnets": ["172.16.24.0/24"]});
    state.virtual_networks(Watched::Apply(seen(object("x", "blue", 2, other))));
    state.pods(Watched::Apply(naming("a")));
    assert_eq!(addresses(&state, "a"), ["172.16.24.9/24"]);
}

#[test]
fn many_claims_and_pods_of_one_network_cost_no_square() {
    let net = seen(object(
        "x",
        "blue",
        1,
        json!({"subnets": ["172.16.0.0/16"], "ipam": {"lifecycle": "Persistent"}}),
    ));
    let mut state = with(net, Vec::new());
    let count = 10_000;
    let pod = |n: usize, life: &str| {
        let mut pod = of_set(&format!("{life}-{n}"), "n1");
        pod.pod.name = NamespacedName::new("x", format!("web-{n}"));
        // Beyond the node's own range all pods would wait.
        pod.pod.node = format!("n{}", 1 + n % 2);
        pod
    };
    for n in 0..count {
        let seen = pod(n, "a");
        state.attach(&seen).unwrap();
    }
    let reports = state.claim_reports();
    assert_eq!(reports.len(), count);
    for report in reports {
        let ips: Vec<String> =
            report.status.iter().flat_map(|status| &status.ips).map(ToString::to_string).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let made = claim(&report.object.name, &ips, &[]);
        state.ipam_claims(Some(Watched::Apply(made)));
    }
    for n in 0..count {
        let networks = state.released(&[format!("a-{n}")]);
        assert!(networks.notices.is_empty());
        let again = state.attach(&pod(n, "b")).unwrap().unwrap();
        let kept = state.network_ipam.kept(&NamespacedName::new("x", format!("web-{n}.net1"))).unwrap().1;
        assert_eq!(again[0].addresses, kept);
    }
}
