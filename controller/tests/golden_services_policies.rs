//! What is planned for services and policies, row by row against what ovn-kubernetes wrote for the same objects.
//!
//! `differences-services-policies.txt` lists the deliberate differences with their reasons. A difference that is
//! not listed fails, and so does a listed one that does not occur.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use controller::plan::{self, Item, Member, RowKey, Table};
use ovsdb_client::{Atom, Datum};
use serde_json::{Map, Value, json};

/// Tables compared, with the columns that are compared; all columns where none is named.
const TABLES: [(Table, &str, &[&str]); 7] = [
    (Table::Acl, "ACL", &[]),
    (Table::AddressSet, "Address_Set", &[]),
    (Table::LoadBalancer, "Load_Balancer", &[]),
    (Table::LoadBalancerGroup, "Load_Balancer_Group", &[]),
    (Table::PortGroup, "Port_Group", &[]),
    (Table::LogicalRouter, "Logical_Router", &["load_balancer", "load_balancer_group"]),
    (Table::LogicalSwitch, "Logical_Switch", &["load_balancer", "load_balancer_group", "acls"]),
];
/// Set-valued columns of these tables; all others are scalars or maps.
const SETS: [&str; 8] = [
    "acls",
    "addresses",
    "load_balancer",
    "load_balancer_group",
    "ports",
    "selection_fields",
    "nat",
    "policies",
];

type Rows = BTreeMap<(String, String), Map<String, Value>>;

fn atom(atom: &Atom) -> Value {
    match atom {
        Atom::Integer(value) => json!(value),
        Atom::Real(value) => json!(value),
        Atom::Boolean(value) => json!(value),
        Atom::String(value) => json!(value),
        Atom::Uuid(_) | Atom::NamedUuid(_) => panic!("a plan refers to rows by edges"),
    }
}

fn value(column: &str, datum: &Datum) -> Value {
    match datum {
        Datum::Set(atoms) if SETS.contains(&column) => Value::Array(atoms.iter().map(atom).collect()),
        Datum::Set(atoms) => atoms.first().map_or(Value::Null, atom),
        Datum::Map(pairs) => {
            let text =
                |atom: &Atom| if let Atom::String(text) = atom { text.clone() } else { panic!("{atom:?}") };
            pairs.iter().map(|(k, v)| (text(k), atom(v))).collect::<Map<_, _>>().into()
        }
    }
}

/// Left out as the reference leaves them out: empty columns, and columns at their default.
fn is_empty(column: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => column == "label" && number.as_u64() == Some(0),
        Value::Bool(true) => false,
    }
}

fn keep(columns: &[&str], column: &str, value: &Value) -> bool {
    (columns.is_empty() || columns.contains(&column)) && !is_empty(column, value)
}

/// A row's name in the database.
fn name(key: &RowKey) -> String {
    match key.table {
        Table::PortGroup | Table::AddressSet => key.hashed_name(),
        _ => key.key.to_string(),
    }
}

/// The plan of all units as rows.
fn planned(stage: u8) -> Rows {
    let (index, config) = (fixture::index(stage), fixture::config());
    let mut columns: BTreeMap<RowKey, Map<String, Value>> = BTreeMap::new();
    let mut edges: BTreeMap<(RowKey, &str), BTreeSet<String>> = BTreeMap::new();
    for unit in index.units() {
        for item in plan::plan(&index, &config, &unit) {
            match item {
                Item::Row(row) => {
                    let values: Map<_, _> = row
                        .columns
                        .iter()
                        .map(|(name, datum)| ((*name).to_owned(), value(name, datum)))
                        .collect();
                    if let Some(other) = columns.insert(row.key.clone(), values.clone()) {
                        assert_eq!(other, values, "two units disagree on {:?}", row.key);
                    }
                }
                Item::Edge(edge) => {
                    let member = match edge.member {
                        Member::Row(key) => name(&key),
                        Member::Text(text) => text,
                    };
                    edges.entry((edge.owner, edge.column)).or_default().insert(member);
                }
            }
        }
    }
    for ((owner, column), members) in edges {
        let row = columns.get_mut(&owner).unwrap_or_else(|| panic!("no row {owner:?} for its {column}"));
        row.insert(column.to_owned(), members.into_iter().collect::<Vec<_>>().into());
    }
    let mut rows = Rows::new();
    for (key, row) in columns {
        let Some((_, table, desired)) = TABLES.iter().find(|(table, ..)| *table == key.table) else {
            continue;
        };
        let row = row.into_iter().filter(|(name, value)| keep(desired, name, value)).collect();
        rows.insert(((*table).to_owned(), name(&key)), row);
    }
    rows
}

fn golden(stage: u8) -> Rows {
    let directory = ["1-nodes", "2-pods", "3-services", "4-policies"][usize::from(stage) - 1];
    let text = std::fs::read_to_string(fixture::golden().join(directory).join("nb.json")).unwrap();
    let tables: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let mut rows = Rows::new();
    for (_, table, desired) in TABLES {
        for row in tables.get(table).and_then(Value::as_array).into_iter().flatten() {
            let row = row.as_object().unwrap();
            let name = row.get("_name").or(row.get("name")).unwrap().as_str().unwrap();
            let row = row
                .iter()
                .filter(|(column, value)| *column != "_name" && keep(desired, column, value))
                .map(|(column, value)| (column.clone(), value.clone()))
                .collect();
            rows.insert((table.to_owned(), name.to_owned()), row);
        }
    }
    rows
}

/// Differences as lines `only ovn-kubernetes|only slipstream|differs TABLE NAME`.
fn differences(ours: &Rows, theirs: &Rows) -> BTreeMap<String, String> {
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let mut found = BTreeMap::new();
    for key in keys {
        let (table, name) = key;
        let (kind, detail) = match (ours.get(key), theirs.get(key)) {
            (Some(a), Some(b)) if a == b => continue,
            (Some(a), Some(b)) => ("differs", format!("\n  ours   {}\n  theirs {}", json!(a), json!(b))),
            (Some(a), None) => ("only slipstream", json!(a).to_string()),
            (None, b) => ("only ovn-kubernetes", json!(b).to_string()),
        };
        found.insert(format!("{kind} {table} {name}"), detail);
    }
    found
}

/// The reviewed list of one stage: blocks of `stage N`, then lines of differences, each followed by an indented reason.
fn reviewed(stage: u8) -> BTreeSet<String> {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/differences-services-policies.txt"
    ))
    .unwrap();
    let mut at = 0;
    let mut found = BTreeSet::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        if let Some(number) = line.strip_prefix("stage ") {
            at = number.parse().unwrap();
        } else {
            let reason = lines.next_if(|next| next.starts_with("    "));
            assert!(reason.is_some_and(|reason| reason.trim().len() > 20), "no reason below: {line}");
            if at == stage {
                assert!(found.insert(line.to_owned()), "twice: {line}");
            }
        }
    }
    found
}

fn compare(stage: u8) {
    let (ours, theirs) = (planned(stage), golden(stage));
    assert!(theirs.len() > 4, "the reference of stage {stage} has rows");
    let found = differences(&ours, &theirs);
    let reviewed = reviewed(stage);
    let unlisted: Vec<String> = found
        .iter()
        .filter(|(line, _)| !reviewed.contains(*line))
        .map(|(line, detail)| format!("{line} {detail}"))
        .collect();
    assert!(unlisted.is_empty(), "stage {stage}: not in the reviewed list:\n{}", unlisted.join("\n"));
    let unused: Vec<_> = reviewed.iter().filter(|line| !found.contains_key(*line)).collect();
    assert!(unused.is_empty(), "stage {stage}: listed, but no difference: {unused:#?}");
}

#[test]
fn the_api_service_of_stage_1_is_that_of_the_reference() {
    compare(1);
}

#[test]
fn pods_alone_add_no_row_to_these_tables_in_stage_2() {
    compare(2);
}

#[test]
fn services_of_stage_3_are_those_of_the_reference() {
    compare(3);
}

#[test]
fn policies_of_stage_4_are_those_of_the_reference_but_for_the_reviewed_differences() {
    compare(4);
}
