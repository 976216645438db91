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
    let schema = std::fs::read_to_string(ovs::schema("ovn-nb.ovsschema")).unwrap();
    let schema = serde_json::from_str(&schema).unwrap();
    let ours = normalize::database(&server.dump("OVN_Northbound"), &schema, &HashMap::new()).unwrap();
    let differences = ovn_reference::compare(&rows(data::northbound(stage).unwrap()), &rows(ours));
    let reviewed = Reviewed::load().unwrap();
    reviewed.judge(stage, differences, |table, _| is_ours(table)).unwrap_or_else(|wrong| panic!("{wrong}"));
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
