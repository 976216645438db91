//! The objects of the golden reference through index, plan and reconciliation into a real northbound database, row by row
//! against what ovn-kubernetes wrote. `golden/differences.txt` lists the deliberate differences with their reasons; one
//! that is not listed fails, and so does a listed one that does not occur.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;
#[allow(dead_code, reason = "shared with the other tests")]
mod fixture;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use common::{Controller, Server, config, nodes, pods};
use controller::engine::Input;
use controller::index::convert;
use controller::index::policy::Policy;
use controller::state::Watched;
use ovsdb_client::{Atom, Client, Columns, Datum, Transaction, Uuid};
use serde_json::{Map, Value, json};

const STAGES: [&str; 4] = ["1-nodes", "2-pods", "3-services", "4-policies"];

/// Rows by table and name, as JSON.
type Rows = BTreeMap<(String, String), Map<String, Value>>;

/// The reports of the watches that lead to a stage, in the order of the reference, after the first lists.
fn inputs(stage: u8) -> Vec<Input> {
    let index = fixture::index(stage);
    let mut inputs = Vec::new();
    inputs.extend([1, 2].map(|number| nodes(Watched::Apply(common::node(&format!("n{number}"), number)))));
    if stage >= 2 {
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
    for (service, slice) in fixture::services(stage, &index) {
        inputs.push(Input::Services(Watched::Apply((service, vec![]))));
        inputs.push(Input::EndpointSlices(Watched::Apply((slice, vec![]))));
    }
    if stage >= 4 {
        for object in fixture::objects("40-policies.yaml") {
            let policy = Policy::from_object(&serde_json::from_value(object).unwrap());
            inputs.push(Input::Policies(Watched::Apply(policy)));
        }
    }
    inputs
}

fn text(columns: &Columns, column: &str) -> String {
    match columns.get(column) {
        Some(Datum::Set(atoms)) => match atoms.first() {
            Some(Atom::String(text)) => text.clone(),
            Some(Atom::Integer(number)) => number.to_string(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// The name of a row in the reference's notation.
fn label(table: &str, row: &Columns) -> String {
    let of = |column: &str| text(row, column);
    match table {
        "ACL" => match row.get("external_ids") {
            Some(Datum::Map(ids)) => {
                let id = ids.iter().find(|(key, _)| *key == Atom::from("k8s.ovn.org/id"));
                id.map(|(_, id)| if let Atom::String(id) = id { id.clone() } else { String::new() })
                    .unwrap_or_default()
            }
            _ => String::new(),
        },
        "NAT" => format!("{} {} {}", of("type"), of("external_ip"), of("logical_ip")),
        "Logical_Router_Static_Route" => {
            let all =
                format!("{} via {} {} {}", of("ip_prefix"), of("nexthop"), of("policy"), of("output_port"));
            all.trim_end().to_owned()
        }
        "Logical_Router_Policy" => format!("{} {}", of("priority"), of("match")),
        "Static_MAC_Binding" => format!("{} {}", of("logical_port"), of("ip")),
        "Meter_Band" => format!("{} {} {}", of("action"), of("rate"), of("burst_size")),
        _ => of("name"),
    }
}

/// Every row of the tables that the reference has, by the rules of its `normalize.py`.
async fn dump(client: &Client) -> Rows {
    let schema = client.schema().await.unwrap();
    let tables: Vec<&String> = schema.tables.keys().filter(|table| *table != "NB_Global").collect();
    let mut select = Transaction::new();
    for table in &tables {
        select.select(table, vec![], &[]);
    }
    let found = client.transact(select).await.unwrap();
    let mut names: HashMap<Uuid, String> = HashMap::new();
    for (table, result) in tables.iter().zip(&found) {
        for row in &result.rows {
            names.insert(row["_uuid"].as_uuid().unwrap(), label(table, row));
        }
    }
    let atom = |atom: &Atom| match atom {
        Atom::Integer(value) => json!(value),
        Atom::Real(value) => json!(value),
        Atom::Boolean(value) => json!(value),
        Atom::String(value) => json!(value),
        Atom::Uuid(uuid) => json!(names[uuid]),
        Atom::NamedUuid(name) => panic!("{name} in a database"),
    };
    let mut rows = Rows::new();
    for (table, result) in tables.iter().zip(&found) {
        for row in &result.rows {
            let mut values = Map::new();
            for (column, datum) in row {
                let column_type = schema.tables[*table].columns.get(column).map(|column| &column.r#type);
                let many = column_type.is_some_and(|t| t.get("max").is_some_and(|max| *max != 1));
                let value = match datum {
                    _ if column.starts_with('_') => continue,
                    Datum::Map(pairs) => {
                        let key = |key: &Atom| {
                            if let Atom::String(key) = key { key.clone() } else { panic!("{key:?}") }
                        };
                        Value::Object(pairs.iter().map(|(k, v)| (key(k), atom(v))).collect())
                    }
                    Datum::Set(atoms) if many => {
                        let mut list: Vec<Value> = atoms.iter().map(atom).collect();
                        list.sort_by_key(ToString::to_string);
                        Value::Array(list)
                    }
                    Datum::Set(atoms) => atoms.first().map_or(Value::Null, atom),
                };
                let empty = match &value {
                    Value::Null | Value::Bool(false) => true,
                    Value::String(text) => text.is_empty(),
                    Value::Array(list) => list.is_empty(),
                    Value::Object(map) => map.is_empty(),
                    _ => false,
                };
                if !empty {
                    values.insert(column.clone(), value);
                }
            }
            insert(&mut rows, table, label(table, row), values);
        }
    }
    rows
}

/// Rows of one name (routes of different routers) are told apart by a number.
fn insert(rows: &mut Rows, table: &str, name: String, values: Map<String, Value>) {
    let mut key = (table.to_owned(), name.clone());
    let mut number = 1;
    while rows.contains_key(&key) {
        number += 1;
        key.1 = format!("{name} #{number}");
    }
    rows.insert(key, values);
}

fn golden(stage: u8) -> Rows {
    let file = fixture::golden().join(STAGES[usize::from(stage) - 1]).join("nb.json");
    let tables: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut rows = Rows::new();
    for (table, list) in tables {
        // Made by the reference's start script and by OVN itself.
        if matches!(table.as_str(), "NB_Global" | "Connection") {
            continue;
        }
        for row in list.as_array().unwrap() {
            let mut row = row.as_object().unwrap().clone();
            let name = row.remove("_name").or_else(|| row.get("name").cloned()).unwrap();
            insert(&mut rows, &table, name.as_str().unwrap().to_owned(), row);
        }
    }
    rows
}

/// The reviewed list of a stage: `stages NN…`, then lines of differences, each followed by an indented reason.
fn reviewed(stage: u8) -> BTreeSet<String> {
    let list = common::read("tests/golden/differences.txt");
    let mut stages = String::new();
    let mut found = BTreeSet::new();
    let mut lines = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        if let Some(numbers) = line.strip_prefix("stages ") {
            numbers.clone_into(&mut stages);
            continue;
        }
        let reason = lines.next_if(|next| next.starts_with("    "));
        assert!(reason.is_some_and(|reason| reason.trim().len() > 20), "no reason below: {line}");
        if stages.contains(&stage.to_string()) {
            assert!(found.insert(line.to_owned()), "twice: {line}");
        }
    }
    found
}

async fn compare(stage: u8) {
    let server = Server::northbound();
    let mut controller = Controller::start(server.client(), config()).await;
    controller.feed(common::lists(vec![], vec![])).await;
    controller.feed(inputs(stage)).await;
    let (ours, theirs) = (dump(&server.client_connected().await).await, golden(stage));
    assert!(theirs.len() > 50, "the reference of stage {stage} has rows");
    let mut found = BTreeMap::new();
    for key in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        let (kind, detail) = match (ours.get(key), theirs.get(key)) {
            (Some(a), Some(b)) if a == b => continue,
            (Some(a), Some(b)) => ("differs", format!("\n  ours   {}\n  theirs {}", json!(a), json!(b))),
            (Some(a), None) => ("only slipstream", json!(a).to_string()),
            (None, b) => ("only ovn-kubernetes", json!(b).to_string()),
        };
        found.insert(format!("{kind} {} {}", key.0, key.1), detail);
    }
    let reviewed = reviewed(stage);
    let unlisted: Vec<String> = found
        .iter()
        .filter(|(line, _)| !reviewed.contains(*line))
        .map(|(line, detail)| format!("{line} {detail}"))
        .collect();
    assert!(unlisted.is_empty(), "stage {stage}: not in the reviewed list:\n{}", unlisted.join("\n"));
    let unused: Vec<_> = reviewed.iter().filter(|line| !found.contains_key(*line)).collect();
    assert!(unused.is_empty(), "stage {stage}: listed, but no difference: {unused:#?}");
    annotations(stage, &mut controller);
}

/// What was written to nodes and pods is what ovn-kubernetes wrote.
fn annotations(stage: u8, controller: &mut Controller) {
    let file = fixture::golden().join(STAGES[usize::from(stage) - 1]).join("annotations.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut written = 0;
    while let Ok(patch) = controller.patches.try_recv() {
        let (kind, name) = match &patch.object.namespace {
            Some(namespace) => ("pods", format!("{namespace}/{}", patch.object.name)),
            None => ("nodes", patch.object.name.clone()),
        };
        // What the reference does not know is ours alone.
        for (key, value) in
            patch.annotations.into_iter().filter(|(key, _)| !key.starts_with("slipstream.dev/"))
        {
            let theirs = &golden[kind][&name]["annotations"][key];
            let ours = if theirs.is_string() { json!(value) } else { serde_json::from_str(&value).unwrap() };
            assert_eq!(&ours, theirs, "{name} {key}");
            written += 1;
        }
    }
    assert_eq!(written, if stage == 1 { 4 } else { 8 });
}

impl Server {
    async fn client_connected(&self) -> Client {
        let client = self.client();
        client.connected(std::time::Duration::from_secs(10)).await.unwrap();
        client
    }
}

#[tokio::test]
async fn nodes_of_stage_1_are_those_of_the_reference() {
    compare(1).await;
}

#[tokio::test]
async fn pods_of_stage_2_are_those_of_the_reference() {
    compare(2).await;
}

#[tokio::test]
async fn services_of_stage_3_are_those_of_the_reference() {
    compare(3).await;
}

#[tokio::test]
async fn policies_of_stage_4_are_those_of_the_reference() {
    compare(4).await;
}
