//! The part of a database schema that a client asks for: which tables and columns there are (RFC 7047 section 3.2).

use std::collections::BTreeMap;

use serde::Deserialize;

/// Schema of a database as the server has it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Schema {
    /// Name of the database.
    pub name: String,
    /// Version of the schema, as in `7.11.0`.
    #[serde(default)]
    pub version: String,
    /// Tables by name.
    pub tables: BTreeMap<String, TableSchema>,
}

/// Schema of a table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TableSchema {
    /// Columns by name.
    pub columns: BTreeMap<String, ColumnSchema>,
    /// Sets of columns that are unique together.
    #[serde(default)]
    pub indexes: Vec<Vec<String>>,
    /// Whether rows live without being referred to.
    #[serde(default, rename = "isRoot")]
    pub is_root: bool,
}

/// Schema of a column.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ColumnSchema {
    /// Type as in the schema: a string, or an object with `key`, `value`, `min`, `max`.
    pub r#type: serde_json::Value,
    /// False for columns that are not kept on disk.
    #[serde(default)]
    pub ephemeral: bool,
}

impl Schema {
    /// Whether the server knows the table.
    pub fn has_table(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// Whether the server knows the column.
    pub fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|table| table.columns.contains_key(column))
    }
}
