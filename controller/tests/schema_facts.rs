//! The controller's knowledge of the tables that it writes, compared with the schema of the installed OVN.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use controller::plan::Table;
use ovsdb_client::{Schema, TableSchema};
use serde_json::Value;

fn schema() -> Schema {
    serde_json::from_str(&fs::read_to_string(test_support::ovs::schema("ovn-nb.ovsschema")).unwrap()).unwrap()
}

fn table(schema: &Schema, table: Table) -> &TableSchema {
    schema.tables.get(table.name()).unwrap_or_else(|| panic!("the schema has no table {}", table.name()))
}

/// Whether a column refers to rows of its database, and with `refType` strong, which is the default (RFC 7047, section 3.2).
fn reference(column: &Value) -> Option<bool> {
    column["key"]["refTable"].as_str()?;
    Some(column["key"]["refType"] != "weak")
}

#[test]
fn tables_whose_rows_need_a_reference_are_those_of_the_schema() {
    let schema = schema();
    for kind in Table::ALL {
        assert_eq!(kind.is_root(), table(&schema, *kind).is_root, "{}", kind.name());
    }
}

#[test]
fn columns_that_keep_rows_alive_are_strong_references_of_the_schema() {
    let schema = schema();
    for kind in Table::ALL {
        for (name, column) in &table(&schema, *kind).columns {
            match reference(&column.r#type) {
                Some(true) => {
                    // Only references to tables that the controller writes are checked.
                    let target = column.r#type["key"]["refTable"].as_str().unwrap();
                    let writes = Table::ALL.iter().any(|table| table.name() == target && !table.is_root());
                    assert!(!writes || kind.is_strong(name), "{} {name} is strong", kind.name());
                }
                weak => assert!(!kind.is_strong(name), "{} {name}: {weak:?}", kind.name()),
            }
        }
    }
}

#[test]
fn names_that_occur_once_are_indexes_of_the_schema() {
    let schema = schema();
    for kind in Table::ALL.iter().filter(|kind| !kind.is_root()) {
        let unique = table(&schema, *kind).indexes.iter().any(|index| index == &["name"]);
        assert_eq!(kind.has_unique_name(), unique, "{}", kind.name());
    }
}
