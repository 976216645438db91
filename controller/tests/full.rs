//! Full comparison with a real northbound database: it must miss nothing, at any size, and nothing may be open
//! meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::ovn_name;
use api::service::{EndpointSlice, Service};
use common::{Controller, Server, lists, node, pod, pods};
use controller::engine::Input;
use controller::index::policy::Policy;
use controller::metrics::ErrorKind;
use controller::state::Watched;
use ovsdb_client::{Change, Client, MonitorSpec, nb};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// More than any portion of a comparison.
const MANY: usize = 600;

fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})
}

fn deny(namespace: &str) -> Value {
    policy(namespace, "deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}))
}

fn read_policy(object: &Value) -> (Policy, Vec<api::problem::Problem>) {
    Policy::from_object(&serde_json::from_value(object.clone()).unwrap())
}

fn policies(all: &[Value]) -> Input {
    Input::Policies(Watched::Reset(all.iter().map(read_policy).collect()))
}

/// The first lists, with policies.
fn with_policies(nodes: Vec<Value>, pods: Vec<Value>, all: &[Value]) -> Vec<Input> {
    let mut lists = lists(nodes, pods);
    lists.pop();
    lists.push(policies(all));
    lists
}

/// Names of the ports of a port group by its id.
fn ports_of(server: &Server, id: &str) -> BTreeSet<String> {
    let name = ovn_name::hashed(&format!("default-network-controller:{id}"));
    let uuids = server.nbctl(&["--bare", "--columns=ports", "find", "Port_Group", &format!("name={name}")]);
    let all = server.nbctl(&[
        "--format=csv",
        "--no-headings",
        "--columns=_uuid,name",
        "list",
        "Logical_Switch_Port",
    ]);
    let desired: BTreeSet<&str> = uuids.split_whitespace().collect();
    let pairs = all.lines().filter_map(|line| line.split_once(','));
    pairs.filter(|(uuid, _)| desired.contains(uuid)).map(|(_, name)| name.to_owned()).collect()
}

fn crowd() -> Vec<Value> {
    (0..MANY)
        .map(|at| pod("zzz", &format!("p{at}"), &format!("uid-{at}"), if at % 2 == 0 { "n1" } else { "n2" }))
        .collect()
}

fn two_nodes() -> Vec<Value> {
    ["n1", "n2"].into_iter().zip(1..).map(|(name, number)| wide(node(name, number), number)).collect()
}

/// A node with ranges for many pods.
fn wide(mut node: Value, number: u8) -> Value {
    node["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] =
        json!(format!("{{\"default\":[\"10.244.{}.0/22\"]}}", 4 * u16::from(number)))
            .as_str()
            .unwrap()
            .into();
    node
}

#[tokio::test]
async fn a_pod_made_while_the_controller_was_away_is_isolated_however_many_others_there_are() {
    let server = Server::northbound();
    let mut all = crowd();
    all.push(pod("aaa", "old", "uid-old", "n1"));
    drop(Controller::started(&server, with_policies(two_nodes(), all.clone(), &[deny("aaa")])).await);
    assert_eq!(ports_of(&server, "NetpolNamespace:aaa:Ingress"), BTreeSet::from(["aaa_old".to_owned()]));
    all.push(pod("aaa", "new", "uid-new", "n2"));
    let mut controller = Controller::started(&server, with_policies(two_nodes(), all, &[deny("aaa")])).await;
    let expected = BTreeSet::from(["aaa_old".to_owned(), "aaa_new".to_owned()]);
    assert_eq!(ports_of(&server, "NetpolNamespace:aaa:Ingress"), expected);
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
}

#[tokio::test]
async fn a_policy_made_and_a_label_changed_while_the_controller_was_away_take_effect() {
    let server = Server::northbound();
    let labelled = |name: &str, value: &str| {
        let mut pod = pod("aaa", name, &format!("uid-{name}"), "n1");
        pod["metadata"]["labels"] = json!({"role": value});
        pod
    };
    let of = |value: &str| {
        json!({"podSelector": {"matchLabels": {"role": value}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}]})
    };
    let mut before = crowd();
    before.extend([
        labelled("a", "web"),
        labelled("b", "none"),
        labelled("c", "client"),
        labelled("d", "db"),
    ]);
    drop(
        Controller::started(&server, with_policies(two_nodes(), before, &[policy("aaa", "web", of("web"))]))
            .await,
    );
    let mut after = crowd();
    after.extend([labelled("a", "web"), labelled("b", "web"), labelled("c", "none"), labelled("d", "db")]);
    let all = [policy("aaa", "web", of("web")), policy("aaa", "db", of("db"))];
    let mut controller = Controller::started(&server, with_policies(two_nodes(), after, &all)).await;
    let names = |all: &[&str]| all.iter().map(|name| format!("aaa_{name}")).collect::<BTreeSet<_>>();
    assert_eq!(ports_of(&server, "NetpolNamespace:aaa:Ingress"), names(&["a", "b", "d"]));
    assert_eq!(ports_of(&server, "NetworkPolicy:aaa:web"), names(&["a", "b"]));
    let clients = ovn_name::hashed("default-network-controller:PodSelector:aaa_LS{role: client,}:v4");
    let set =
        server.nbctl(&["--bare", "--columns=addresses", "find", "Address_Set", &format!("name={clients}")]);
    assert_eq!(set, "", "who is no client any more is not allowed");
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
}

/// Follows a database update by update; returns every moment in which a port was there and not in the group.
async fn watch_for_open_ports(
    client: Client,
    group: String,
    stop: Arc<Notify>,
) -> tokio::task::JoinHandle<Vec<String>> {
    let spec = MonitorSpec::new()
        .table::<nb::LogicalSwitchPort>(&["name"])
        .table::<nb::PortGroup>(&["name", "ports", "acls"]);
    let replica = client.monitor(spec).await.unwrap();
    let mut changes = replica.changes();
    tokio::spawn(async move {
        // The monitor lives as long as these values.
        let _session = (client, replica);
        let (mut grouped, mut open) = (BTreeSet::new(), Vec::new());
        loop {
            let change = tokio::select! {
                biased;
                Some(change) = changes.next() => change,
                () = stop.notified() => break,
            };
            let Change::Rows(rows) = change else { panic!("changes were missed") };
            for row in rows.iter() {
                if let Some(new) = row.new_row::<nb::PortGroup>()
                    && new.name == group
                {
                    assert!(!new.acls.is_empty(), "a group without its ACLs");
                    grouped = BTreeSet::from(&new.ports);
                }
            }
            for row in rows.iter() {
                if let Some(new) = row.new_row::<nb::LogicalSwitchPort>()
                    && new.name.starts_with("aaa_")
                    && !grouped.contains(&new.uuid)
                {
                    open.push(new.name.clone());
                }
            }
        }
        assert!(!grouped.is_empty(), "nothing was seen");
        open
    })
}

#[tokio::test]
async fn nothing_is_open_while_the_database_is_written_from_nothing() {
    let server = Server::northbound();
    let group = ovn_name::hashed("default-network-controller:NetpolNamespace:aaa:Ingress");
    let stop = Arc::new(Notify::new());
    let watching = watch_for_open_ports(server.client(), group, Arc::clone(&stop)).await;
    let mut all = crowd();
    all.extend((0..50).map(|at| pod("aaa", &format!("p{at}"), &format!("uid-a{at}"), "n1")));
    let controller =
        Controller::started(&server, with_policies(two_nodes(), all, &[deny("aaa"), deny("zzz")])).await;
    stop.notify_one();
    assert_eq!(watching.await.unwrap(), Vec::<String>::new());
    let (operations, bytes) = controller.metrics.largest_transaction();
    assert!(operations <= 6_000 && bytes < 3 << 20, "{operations} operations, {bytes} bytes");
}

#[tokio::test]
async fn a_database_that_was_emptied_is_written_again_in_portions() {
    let server = Server::northbound();
    let mut all = crowd();
    all.extend((0..2 * MANY).map(|at| {
        pod("aaa", &format!("p{at}"), &format!("uid-a{at}"), if at % 2 == 0 { "n1" } else { "n2" })
    }));
    all.retain(|pod| pod["metadata"]["name"].as_str().is_some_and(|name| name.len() <= 4));
    let mut controller =
        Controller::started(&server, with_policies(two_nodes(), all.clone(), &[deny("aaa"), deny("zzz")]))
            .await;
    let before = ports_of(&server, "NetpolNamespace:aaa:Ingress");
    let (written, repairs) = (controller.metrics.operations.get(), controller.metrics.repairs.get());
    for table in ["Logical_Switch", "Logical_Router", "Port_Group", "Address_Set", "Load_Balancer_Group"] {
        server.nbctl(&["--", "--all", "destroy", table]);
    }
    controller.catch_up().await;
    controller.engine.settle().await.unwrap();
    assert_eq!(ports_of(&server, "NetpolNamespace:aaa:Ingress"), before);
    assert!(controller.metrics.repairs.get() - repairs < 100, "not row by row");
    let again = controller.metrics.operations.get() - written;
    let (operations, bytes) = controller.metrics.largest_transaction();
    assert!(operations <= 6_000 && bytes < 3 << 20, "{operations} operations, {bytes} bytes, {again} in all");
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
}

fn node_port(name: &str, at: usize) -> (Service, Vec<api::problem::Problem>) {
    Service::from_object(&serde_json::from_value(json!({
        "metadata": {"namespace": "x", "name": name, "uid": name},
        "spec": {"type": "NodePort", "clusterIP": format!("10.96.1.{at}"), "clusterIPs": [format!("10.96.1.{at}")],
            "ports": [{"port": 80, "nodePort": 30000 + at}]},
    })).unwrap())
}

fn slice(name: &str) -> (EndpointSlice, Vec<api::problem::Problem>) {
    EndpointSlice::from_object(
        &serde_json::from_value(json!({
            "metadata": {"namespace": "x", "name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"port": 8080}],
            "endpoints": [{"addresses": ["10.244.4.9"]}, {"addresses": ["10.244.8.9"]}],
        }))
        .unwrap(),
    )
}

fn many_nodes(count: usize) -> Vec<Value> {
    (0..count)
        .map(|at| {
            let mut node = node(&format!("n{at}"), 1);
            let ip = format!("172.18.{}.{}", at / 200, at % 200 + 2);
            let annotations = &mut node["metadata"]["annotations"];
            annotations["k8s.ovn.org/node-chassis-id"] = format!("chassis-{at}").into();
            annotations["k8s.ovn.org/host-cidrs"] = format!("[\"{ip}/16\"]").into();
            annotations["k8s.ovn.org/l3-gateway-config"] = json!({"default": {
                "mode": "shared", "bridge-id": "breth0", "interface-id": format!("breth0_n{at}"),
                "mac-address": format!("02:42:ac:12:{:02x}:{:02x}", at / 200, at % 200 + 2),
                "ip-addresses": [format!("{ip}/16")], "ip-address": format!("{ip}/16"),
                "next-hops": ["172.18.0.1"], "next-hop": "172.18.0.1", "node-port-enable": "true", "vlan-id": "0"
            }}).to_string().into();
            node["status"]["addresses"][0]["address"] = ip.into();
            node
        })
        .collect()
}

#[tokio::test]
async fn services_on_many_nodes_are_written_in_bounded_transactions_and_a_node_is_planned_once() {
    let server = Server::northbound();
    let names: Vec<String> = (1..=40).map(|at| format!("s{at}")).collect();
    let mut inputs = lists(many_nodes(200), vec![]);
    inputs[3] = Input::Services(Watched::Reset(
        names.iter().zip(1..).map(|(name, at)| node_port(name, at)).collect(),
    ));
    inputs[4] = Input::EndpointSlices(Watched::Reset(names.iter().map(|name| slice(name)).collect()));
    let mut controller = Controller::started(&server, inputs).await;
    let balancers = server.nbctl(&["--bare", "--columns=name", "list", "Load_Balancer"]);
    assert_eq!(balancers.lines().filter(|line| line.contains("_node_")).count(), 40 * 200);
    let (operations, bytes) = controller.metrics.largest_transaction();
    assert!(operations <= 6_000 && bytes < 2 << 20, "{operations} operations, {bytes} bytes");
    // Ten nodes join at once: the services are planned again for all of them together.
    let before = controller.metrics.transactions.get();
    let joined = many_nodes(210).split_off(200);
    controller.feed(joined.into_iter().map(|node| common::nodes(Watched::Apply(node)))).await;
    assert!(
        controller.metrics.transactions.get() - before <= 3,
        "{}",
        controller.metrics.transactions.get() - before
    );
    let balancers = server.nbctl(&["--bare", "--columns=name", "list", "Load_Balancer"]);
    assert_eq!(balancers.lines().filter(|line| line.contains("_node_")).count(), 40 * 210);
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
}

#[tokio::test]
async fn a_verification_finds_what_no_change_told_of_and_puts_it_right() {
    let server = Server::northbound();
    let mut controller = Controller::started(
        &server,
        with_policies(two_nodes(), vec![pod("aaa", "a", "uid-a", "n1")], &[deny("aaa")]),
    )
    .await;
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
    controller.engine.forget_changes();
    server.nbctl(&[
        "clear",
        "Port_Group",
        &ovn_name::hashed("default-network-controller:NetpolNamespace:aaa:Ingress"),
        "ports",
    ]);
    controller.catch_up().await;
    controller.engine.forget_changes();
    assert_eq!(controller.engine.verify().await.unwrap(), 1);
    assert_eq!(ports_of(&server, "NetpolNamespace:aaa:Ingress"), BTreeSet::from(["aaa_a".to_owned()]));
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
}

/// Where nothing has changed since the last verification, only planning is left to do. Leaving out the rest must not hide a
/// change.
#[tokio::test]
async fn a_verification_after_one_without_a_difference_still_finds_what_came_since() {
    let server = Server::northbound();
    let mut controller = Controller::started(
        &server,
        with_policies(two_nodes(), vec![pod("aaa", "a", "uid-a", "n1")], &[deny("aaa")]),
    )
    .await;
    for _ in 0..3 {
        assert_eq!(controller.engine.verify().await.unwrap(), 0);
    }
    assert_eq!(controller.metrics.verifications_unchanged.get(), 2);
    server.nbctl(&["lsp-del", "aaa_a"]);
    controller.catch_up().await;
    controller.engine.forget_changes();
    assert!(controller.engine.verify().await.unwrap() > 0);
    assert!(server.nbctl(&["lsp-list", "n1"]).contains("aaa_a"));
    assert_eq!(controller.metrics.verifications_unchanged.get(), 2);
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
    // A change by an event is compared again as well.
    controller.feed([pods(Watched::Apply(pod("aaa", "b", "uid-b", "n1")))]).await;
    controller.engine.forget_changes();
    server.nbctl(&["lsp-del", "aaa_b"]);
    controller.catch_up().await;
    controller.engine.forget_changes();
    assert!(controller.engine.verify().await.unwrap() > 0);
    assert!(server.nbctl(&["lsp-list", "n1"]).contains("aaa_b"));
}

#[tokio::test]
async fn what_the_database_refuses_is_left_out_of_the_rest_and_tried_again() {
    let server = Server::northbound();
    // Another client's group has the name that a policy's group would have.
    let name = ovn_name::hashed("default-network-controller:NetworkPolicy:aaa:deny");
    server.nbctl(&["create", "Port_Group", &format!("name={name}")]);
    let all = (0..20).map(|at| pod("bbb", &format!("p{at}"), &format!("uid-{at}"), "n1")).collect();
    let mut controller =
        started_with_refusals(&server, with_policies(two_nodes(), all, &[deny("aaa"), deny("bbb")])).await;
    assert!(controller.metrics.errors(ErrorKind::TransactionRefused) > 0);
    assert_eq!(ports_of(&server, "NetpolNamespace:bbb:Ingress").len(), 20);
    let notice = loop {
        let notice = controller.notices.try_recv().expect("the policy's owner is told");
        if notice.message.contains("refuses") {
            break notice;
        }
    };
    assert!(notice.message.starts_with("network policy aaa/deny"), "{}", notice.message);
    // Everything else is still written, without delay.
    let refused = controller.metrics.errors(ErrorKind::TransactionRefused);
    controller.feed([pods(Watched::Apply(pod("bbb", "later", "uid-later", "n1")))]).await;
    assert_eq!(ports_of(&server, "NetpolNamespace:bbb:Ingress").len(), 21);
    assert_eq!(controller.metrics.errors(ErrorKind::TransactionRefused), refused);
    // A pod that the policy would isolate is not connected without the policy.
    controller.feed([pods(Watched::Apply(pod("aaa", "a", "uid-a", "n1")))]).await;
    assert!(!server.nbctl(&["lsp-list", "n1"]).contains("aaa_a"));
    // When the name is free and the policy has changed, it is written.
    server.nbctl(&["destroy", "Port_Group", &name]);
    controller.catch_up().await;
    let mut changed = read_policy(&deny("aaa"));
    changed.0.egress = Some(Vec::new());
    controller.feed([Input::Policies(Watched::Apply(changed))]).await;
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
    assert_eq!(ports_of(&server, "NetworkPolicy:aaa:deny"), BTreeSet::from(["aaa_a".to_owned()]));
}

async fn started_with_refusals(server: &Server, inputs: Vec<Input>) -> Controller {
    let mut controller = Controller::started(server, vec![]).await;
    for input in inputs {
        controller.engine.apply(input);
    }
    for _ in 0..100 {
        if controller.engine.settle().await.is_ok() {
            return controller;
        }
    }
    panic!("there is no end of refusals");
}
