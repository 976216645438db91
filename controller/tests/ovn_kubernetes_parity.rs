//! The reference's objects through index, plan and reconciliation into a real northbound database, row by row
//! against what ovn-kubernetes wrote. Deliberate differences are in the list of `test_support::ovn_reference`; one that is not
//! listed fails, and so does a listed one that does not occur.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;
#[allow(dead_code, reason = "shared with the other tests")]
mod fixture;

use std::collections::HashMap;

use common::{Controller, Server, config, nodes, pods};
use controller::engine::Input;
use controller::index::convert;
use controller::index::policy::Policy;
use controller::state::Watched;
use serde_json::{Value, json};
use test_support::ovn_reference::{self, Reviewed, Stage, data, normalize};
use test_support::ovs;

/// The stage's number in the fixture, from 1.
fn number(stage: Stage) -> u8 {
    u8::try_from(Stage::ALL.iter().position(|one| *one == stage).unwrap()).unwrap() + 1
}

/// The reports of the watches that lead to a stage, in the order of the reference, after the first lists.
fn inputs(stage: Stage) -> Vec<Input> {
    let index = fixture::index(number(stage));
    let mut inputs = Vec::new();
    inputs.extend([1, 2].map(|number| nodes(Watched::Apply(common::node(&format!("n{number}"), number)))));
    if number(stage) >= 2 {
        for object in fixture::objects("10-namespaces.yaml") {
            let namespace = convert::namespace(serde_json::from_value(object).unwrap()).unwrap();
            inputs.push(Input::Namespaces(Watched::Apply(namespace)));
        }
        for mut object in fixture::objects("20-pods.yaml") {
            let text = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
            let uid = format!("uid-of-{}/{}", text("namespace"), text("name"));
            object["metadata"]["uid"] = uid.into();
            if object["spec"]["hostNetwork"] == true {
                object["status"] = json!({"podIP": "172.18.0.2", "podIPs": [{"ip": "172.18.0.2"}]});
            }
            inputs.push(pods(Watched::Apply(object)));
        }
    }
    for (service, slice) in fixture::services(number(stage), &index) {
        inputs.push(Input::Services(Watched::Apply((service, vec![]))));
        inputs.push(Input::EndpointSlices(Watched::Apply((slice, vec![]))));
    }
    if number(stage) >= 4 {
        for object in fixture::objects("40-policies.yaml") {
            let policy = Policy::from_object(&serde_json::from_value(object).unwrap());
            inputs.push(Input::Policies(Watched::Apply(policy)));
        }
    }
    inputs
}

/// Whether a table is compared. The others are written by the reference's start script or by OVN itself, or are compared by other
/// tests.
fn is_ours(table: &str) -> bool {
    !matches!(table, "NB_Global" | "Connection" | "flows") && !table.starts_with("annotations of ")
}

fn rows(mut tables: Value) -> Value {
    tables.as_object_mut().unwrap().retain(|table, _| is_ours(table));
    tables
}

async fn compare(stage: Stage) {
    let server = Server::northbound();
    let mut controller = Controller::start(server.client(), config()).await;
    controller.feed(common::lists(vec![], vec![])).await;
    controller.feed(inputs(stage)).await;
    judge(&server, stage, data::northbound(stage).unwrap());
    annotations(stage, &mut controller);
}

/// Annotations of nodes and pods are those that ovn-kubernetes wrote.
fn annotations(stage: Stage, controller: &mut Controller) {
    let reference = data::annotations(stage).unwrap();
    let mut written = 0;
    while let Ok(patch) = controller.patches.try_recv() {
        let (kind, name) = match &patch.object.namespace {
            Some(namespace) => ("pods", format!("{namespace}/{}", patch.object.name)),
            None => ("nodes", patch.object.name.clone()),
        };
        // Annotations that the reference does not have are ours alone.
        for (key, value) in
            patch.annotations.into_iter().filter(|(key, _)| !key.starts_with("slipstream.dev/"))
        {
            let objects = reference[format!("annotations of {kind}")].as_array().unwrap();
            let theirs = &objects.iter().find(|object| object["_name"] == name.as_str()).unwrap()[&key];
            let ours = if theirs.is_string() { json!(value) } else { serde_json::from_str(&value).unwrap() };
            assert_eq!(&ours, theirs, "{name} {key}");
            written += 1;
        }
    }
    assert_eq!(written, if stage == Stage::Nodes { 4 } else { 8 });
}

#[tokio::test]
async fn nodes_of_stage_1_are_those_of_the_reference() {
    compare(Stage::Nodes).await;
}

#[tokio::test]
async fn pods_of_stage_2_are_those_of_the_reference() {
    compare(Stage::Pods).await;
}

#[tokio::test]
async fn services_of_stage_3_are_those_of_the_reference() {
    compare(Stage::Services).await;
}

#[tokio::test]
async fn policies_of_stage_4_are_those_of_the_reference() {
    compare(Stage::Policies).await;
}

/// What a cluster of the reference had in gateway mode local after all stages: that of mode shared, but for the routes of pods' packets
/// to the outside, which lead to the node's management port.
fn in_mode_local(mut tables: Value) -> Value {
    for (range, shared, local) in
        [("10.244.0.0/24", "100.64.0.2", "10.244.0.2"), ("10.244.1.0/24", "100.64.0.3", "10.244.1.2")]
    {
        let name = |next_hop: &str| json!(format!("{range} via {next_hop} src-ip"));
        let routes = tables["Logical_Router_Static_Route"].as_array_mut().unwrap();
        let route = routes.iter_mut().find(|route| route["_name"] == name(shared)).unwrap();
        (route["_name"], route["nexthop"]) = (name(local), json!(local));
        let routers = tables["Logical_Router"].as_array_mut().unwrap();
        let router = routers.iter_mut().find(|router| router["name"] == "ovn_cluster_router").unwrap();
        let list = router["static_routes"].as_array_mut().unwrap();
        *list.iter_mut().find(|route| **route == name(shared)).unwrap() = name(local);
    }
    tables
}

fn in_mode(mode: &str) -> [Input; 2] {
    [1, 2].map(|number| {
        let mut node = common::node(&format!("n{number}"), number);
        let gateway = &mut node["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"];
        let changed =
            gateway.as_str().unwrap().replace("\"mode\":\"shared\"", &format!("\"mode\":\"{mode}\""));
        *gateway = changed.into();
        nodes(Watched::Apply(node))
    })
}

fn northbound(server: &Server) -> Value {
    let schema = std::fs::read_to_string(ovs::schema("ovn-nb.ovsschema")).unwrap();
    let schema = serde_json::from_str(&schema).unwrap();
    normalize::database(&server.dump("OVN_Northbound"), &schema, &HashMap::new()).unwrap()
}

fn judge(server: &Server, stage: Stage, expected: Value) {
    let differences = ovn_reference::compare(&rows(expected), &rows(northbound(server)));
    let reviewed = Reviewed::load().unwrap();
    let judged = reviewed.judge(stage, differences, |table, _| is_ours(table));
    judged.unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[tokio::test]
async fn gateways_of_mode_local_are_those_of_the_reference_and_can_be_changed_back() {
    let server = Server::northbound();
    let shared = || data::northbound(Stage::Policies).unwrap();
    let mut controller = Controller::start(server.client(), config()).await;
    controller.feed(common::lists(vec![], vec![])).await;
    controller.feed(inputs(Stage::Policies)).await;
    controller.feed(in_mode("local")).await;
    judge(&server, Stage::Policies, in_mode_local(shared()));
    controller.feed(in_mode("shared")).await;
    judge(&server, Stage::Policies, shared());
    // One of a node that cannot be read stays as it is.
    controller.feed(in_mode("local")).await;
    controller.feed(in_mode("spare")).await;
    judge(&server, Stage::Policies, in_mode_local(shared()));
    drop(controller);
    // A controller that comes after a change of the mode removes what is left of it.
    let mut later = Controller::start(server.client(), config()).await;
    later.wait_for_lock().await;
    let known = [1, 2].map(|number| common::node(&format!("n{number}"), number));
    later.feed(common::lists(known.to_vec(), vec![])).await;
    let routes = |tables: Value| -> Vec<Value> {
        let rows = tables["Logical_Router_Static_Route"].as_array().unwrap().clone();
        rows.into_iter()
            .map(|row| row["_name"].clone())
            .filter(|name| name.to_string().contains("src-ip"))
            .collect()
    };
    later.settle_until(|| routes(northbound(&server)) == routes(shared())).await;
    assert_eq!(routes(northbound(&server)), routes(shared()));
}
