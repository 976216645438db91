//! The namespace that represents the nodes, on a real northbound database: the nodes' addresses are in the sets of the peers
//! that select it, and in no other set, whatever changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::collections::{BTreeMap, BTreeSet};

use api::NamespacedName;
use common::{Controller, Server, config, lists, node, nodes, pod};
use controller::config::Config;
use controller::engine::Input;
use controller::index::Namespace;
use controller::index::policy::Policy;
use controller::state::Watched;
use serde_json::{Value, json};

const HOST: &str = "ovn-host-network";
/// The nodes' addresses, by management port and by join switch.
const N1: [&str; 2] = ["10.244.0.2", "100.64.0.2"];
const N2: [&str; 2] = ["10.244.1.2", "100.64.0.3"];
const N1_V6: [&str; 2] = ["fd00:10:244::2", "fd98::2"];

fn with_host_network() -> Config {
    Config { host_network_namespace: Some(HOST.to_owned()), ..config() }
}

fn namespace(name: &str, labels: &[(&str, &str)]) -> Input {
    let own = [("kubernetes.io/metadata.name", name)];
    let labels = own.iter().chain(labels).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let namespace = Namespace { name: name.to_owned(), labels: labels.collect(), ..Namespace::default() };
    Input::Namespaces(Watched::Apply((namespace, Vec::new())))
}

fn policy(name: &str, peer: Value) -> Input {
    let object = json!({"metadata": {"name": name, "namespace": "x"},
        "spec": {"podSelector": {}, "ingress": [{"from": [peer]}]}});
    Input::Policies(Watched::Apply(Policy::from_object(&serde_json::from_value(object).unwrap())))
}

fn named(namespace: &str) -> Value {
    json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}})
}

/// Addresses of the peers' sets, by the peer's name without the family.
fn sets(server: &Server) -> BTreeMap<String, BTreeSet<String>> {
    let text = server.nbctl(&["--format=json", "--columns=external_ids,addresses", "list", "Address_Set"]);
    let table: Value = serde_json::from_str(&text).unwrap();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in table["data"].as_array().unwrap() {
        let ids = row[0][1].as_array().unwrap();
        let name = ids.iter().find(|pair| pair[0] == "k8s.ovn.org/name").unwrap()[1].as_str().unwrap();
        let addresses = match &row[1] {
            Value::Array(set) => set[1].as_array().unwrap().clone(),
            one => vec![one.clone()],
        };
        let texts = addresses.iter().map(|ip| ip.as_str().unwrap().to_owned());
        found.entry(name.to_owned()).or_default().extend(texts);
    }
    found
}

fn all(parts: &[&[&str]]) -> BTreeSet<String> {
    parts.iter().flat_map(|part| part.iter().map(|ip| (*ip).to_owned())).collect()
}

const PEER: &str = "LS{ML:{kubernetes.io/metadata.name: ovn-host-network,},}_LS{}_LNM";

async fn started(server: &Server, config: Config) -> Controller {
    let mut controller = Controller::start(server.client(), config).await;
    controller.feed(lists(vec![node("n1", 1), node("n2", 2)], vec![pod("x", "a", "uid-a", "n1")])).await;
    controller.feed([namespace("x", &[]), policy("hosts", named(HOST))]).await;
    controller
}

#[tokio::test]
async fn a_peer_that_selects_the_host_network_namespace_has_the_nodes_addresses() {
    let server = Server::northbound();
    let mut controller = started(&server, with_host_network()).await;
    assert_eq!(sets(&server), BTreeMap::from([(PEER.to_owned(), all(&[]))]), "the namespace does not exist");
    controller.feed([namespace(HOST, &[])]).await;
    assert_eq!(sets(&server)[PEER], all(&[&N1, &N2]));

    // Other peers: by another label, with pods in particular, of another namespace.
    controller
        .feed([
            policy("labelled", json!({"namespaceSelector": {"matchLabels": {"hosts": "yes"}}})),
            policy("pods", json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}})),
            policy("other", named("y")),
            policy("everybody", json!({"namespaceSelector": {}})),
        ])
        .await;
    let labelled = "LS{ML:{hosts: yes,},}_LS{}_LNM";
    let now = sets(&server);
    assert_eq!(now[labelled], all(&[]));
    assert_eq!(now["LS{}_LS{ML:{a: b,},}"], all(&[]));
    assert_eq!(now["LS{ML:{kubernetes.io/metadata.name: y,},}_LS{}_LNM"], all(&[]));
    assert_eq!(now["LS{}_LS{}_LNM"], all(&[&["10.244.0.3"], &N1, &N2]));

    // Labels are added and removed; nodes and the namespace are deleted and created again.
    controller.feed([namespace(HOST, &[("hosts", "yes")])]).await;
    assert_eq!(sets(&server)[labelled], all(&[&N1, &N2]));
    controller.feed([nodes(Watched::Delete("n2"))]).await;
    assert_eq!((&sets(&server)[labelled], &sets(&server)[PEER]), (&all(&[&N1]), &all(&[&N1])));
    controller.feed([nodes(Watched::Apply(node("n2", 2)))]).await;
    assert_eq!(sets(&server)[PEER], all(&[&N1, &N2]));
    controller.feed([namespace(HOST, &[])]).await;
    assert_eq!((&sets(&server)[labelled], &sets(&server)[PEER]), (&all(&[]), &all(&[&N1, &N2])));
    controller.feed([Input::Namespaces(Watched::Delete(HOST.to_owned()))]).await;
    assert_eq!(sets(&server)[PEER], all(&[]));
    assert_eq!(sets(&server)["LS{}_LS{}_LNM"], all(&[&["10.244.0.3"]]));

    // The set is deleted with its last policy.
    controller.feed([namespace(HOST, &[])]).await;
    controller.feed([Input::Policies(Watched::Delete(NamespacedName::new("x", "hosts")))]).await;
    assert!(!sets(&server).contains_key(PEER));
}

#[tokio::test]
async fn both_families_are_in_the_sets() {
    let server = Server::northbound();
    let mut dual = with_host_network();
    dual.cluster_subnets.push("fd00:10:244::/48/64".parse().unwrap());
    let mut controller = Controller::start(server.client(), dual.with_default_ranges()).await;
    controller.feed(lists(vec![node("n1", 1)], vec![])).await;
    controller.feed([namespace(HOST, &[]), policy("hosts", named(HOST))]).await;
    assert_eq!(sets(&server)[PEER], all(&[&N1, &N1_V6]));
}

#[tokio::test]
async fn without_such_a_namespace_the_nodes_are_in_no_set() {
    let server = Server::northbound();
    let mut controller = started(&server, config()).await;
    controller.feed([namespace(HOST, &[])]).await;
    assert_eq!(sets(&server)[PEER], all(&[]));
}
