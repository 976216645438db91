//! What a replica monitors: tables, columns and conditions.

use serde_json::json;

use super::TablesByName;
use super::protocol::MonitorProtocol;
use super::table::Table;
use crate::{Condition, Row, Schema};

/// One table of a monitor.
#[derive(Debug)]
pub(super) struct TableSpec {
    pub(super) name: &'static str,
    columns: Vec<&'static str>,
    conditions: Vec<Condition>,
}

impl TableSpec {
    pub(super) fn request(&self, schema: &Schema, protocol: MonitorProtocol) -> serde_json::Value {
        let columns: Vec<_> =
            self.columns.iter().filter(|column| schema.has_column(self.name, column)).collect();
        if protocol == MonitorProtocol::Monitor || self.conditions.is_empty() {
            json!([{ "columns": columns }])
        } else {
            json!([{ "columns": columns, "where": self.conditions }])
        }
    }
}

/// Tables, columns, conditions and indexes of a [`crate::Replica`].
#[derive(Debug, Default)]
pub struct MonitorSpec {
    specs: Vec<TableSpec>,
    tables: TablesByName,
}

impl MonitorSpec {
    /// No tables yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Monitors all rows of a table, with the columns given (none means all). Columns and tables that the server's schema
    /// lacks are left out; their fields keep the default.
    pub fn table<R: Row>(self, columns: &[&str]) -> Self {
        self.table_where::<R>(columns, Vec::new())
    }

    /// Monitors the rows for which at least one condition holds; without conditions, all rows. The columns of the
    /// conditions are monitored too.
    ///
    /// # Panics
    /// When a table is named twice, or a column is not one of the table: mistakes in the program.
    pub fn table_where<R: Row>(mut self, columns: &[&str], conditions: Vec<Condition>) -> Self {
        let mut chosen: Vec<&'static str> = if columns.is_empty() {
            R::COLUMNS.to_vec()
        } else {
            columns.iter().map(|column| known::<R>(column)).collect()
        };
        for condition in &conditions {
            if let Condition::Compare { column, .. } = condition
                && column != "_uuid"
                && !chosen.contains(&column.as_str())
            {
                chosen.push(known::<R>(column));
            }
        }
        let table = Table::<R>::new(conditions.clone());
        assert!(
            self.tables.insert(R::TABLE, Box::new(table)).is_none(),
            "table {} is named twice in a MonitorSpec",
            R::TABLE
        );
        self.specs.push(TableSpec { name: R::TABLE, columns: chosen, conditions });
        self
    }

    /// Adds an index to a table named before: `keys` returns the keys under which a row is found by [`Table::by_index`].
    ///
    /// # Panics
    /// When the table was not named before: a mistake in the program.
    pub fn index<R: Row>(mut self, name: &'static str, keys: fn(&R) -> Vec<String>) -> Self {
        let table =
            self.tables.get_mut(R::TABLE).and_then(|table| table.as_any_mut().downcast_mut::<Table<R>>());
        table
            .unwrap_or_else(|| {
                panic!("index {name:?} on table {}, which the MonitorSpec does not name before it", R::TABLE)
            })
            .add_index(name, keys);
        self
    }

    pub(super) fn into_parts(self) -> (Vec<TableSpec>, TablesByName) {
        (self.specs, self.tables)
    }
}

fn known<R: Row>(column: &str) -> &'static str {
    R::COLUMNS
        .iter()
        .find(|known| **known == column)
        .unwrap_or_else(|| panic!("table {} has no column {column:?}", R::TABLE))
}
