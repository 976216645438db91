//! The plan for services and policies, row by row against the rows that ovn-kubernetes wrote for the same objects.
//!
//! Deliberate differences are in the list of `test_support::ovn_reference`. A difference that is not listed fails, and so does a
//! listed one that does not occur.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use controller::plan::{self, Item, Member, RowKey, Table};
use ovsdb_client::{Atom, Datum};
use serde_json::{Map, Value, json};
use test_support::ovn_reference::{self, Reviewed, Stage, data};

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

/// The reference leaves out empty columns and columns at their default; so are they here.
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
fn planned(stage: Stage) -> Value {
    let number = Stage::ALL.iter().position(|one| *one == stage).unwrap() + 1;
    let (index, config) = (fixture::index(u8::try_from(number).unwrap()), fixture::config());
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
    let mut tables: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (key, row) in columns {
        let Some((_, table, desired)) = TABLES.iter().find(|(table, ..)| *table == key.table) else {
            continue;
        };
        let columns = row.into_iter().filter(|(name, value)| keep(desired, name, value));
        let mut row: Map<_, _> = columns.collect();
        row.insert("_name".to_owned(), name(&key).into());
        tables.entry(table).or_default().push(row.into());
    }
    json!(tables)
}

/// The reference with the tables and columns that are compared.
fn reference(stage: Stage) -> Value {
    let kept = data::northbound(stage).unwrap();
    let mut tables = Map::new();
    for (_, table, wanted) in TABLES {
        let rows = kept[table].as_array().into_iter().flatten().map(|row| {
            let row = row.as_object().unwrap();
            let name = row.get("_name").or(row.get("name")).unwrap().clone();
            let columns =
                row.iter().filter(|(column, value)| *column != "_name" && keep(wanted, column, value));
            let mut row: Map<_, _> = columns.map(|(column, value)| (column.clone(), value.clone())).collect();
            row.insert("_name".to_owned(), name);
            Value::Object(row)
        });
        tables.insert(table.to_owned(), rows.collect());
    }
    tables.into()
}

/// Whether a column of a table is compared.
fn is_compared(table: &str, column: &str) -> bool {
    let column = column.split(':').next().unwrap_or(column);
    TABLES.iter().any(|(_, name, wanted)| {
        *name == table && (wanted.is_empty() || column.starts_with('(') || wanted.contains(&column))
    })
}

fn compare(stage: Stage) {
    let (ours, theirs) = (planned(stage), reference(stage));
    let differences = ovn_reference::compare(&theirs, &ours);
    Reviewed::load()
        .unwrap()
        .judge(stage, differences, is_compared)
        .unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn the_api_service_of_stage_1_is_that_of_the_reference() {
    compare(Stage::Nodes);
}

#[test]
fn pods_alone_add_no_row_to_these_tables_in_stage_2() {
    compare(Stage::Pods);
}

#[test]
fn services_of_stage_3_are_those_of_the_reference() {
    compare(Stage::Services);
}

#[test]
fn policies_of_stage_4_are_those_of_the_reference_but_for_the_reviewed_differences() {
    compare(Stage::Policies);
}
