//! The operations of a transaction and their form on the wire (RFC 7047 section 5.2).

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use uuid::Uuid;

use super::Columns;
use crate::{Condition, Datum};

/// Change of a column in place (RFC 7047 section 5.1, `<mutator>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutator {
    /// Adds a number.
    Add,
    /// Subtracts a number.
    Sub,
    /// Multiplies.
    Mul,
    /// Divides.
    Div,
    /// Remainder.
    Mod,
    /// Adds elements to a set, or pairs whose key is not there to a map.
    Insert,
    /// Removes elements of a set; of a map, pairs, or (given a set) keys.
    Delete,
}

impl Mutator {
    fn wire(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Sub => "-=",
            Self::Mul => "*=",
            Self::Div => "/=",
            Self::Mod => "%=",
            Self::Insert => "insert",
            Self::Delete => "delete",
        }
    }
}

/// What `wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The rows found equal the rows given.
    Equal,
    /// The rows found differ from the rows given.
    NotEqual,
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Inserts a row.
    Insert {
        /// Table name.
        table: String,
        /// Columns; others get their defaults.
        row: Columns,
        /// Name by which the transaction refers to the row.
        name: String,
        /// Identifier the row shall have (ovsdb-server(7)); chosen by the server if absent.
        uuid: Option<Uuid>,
    },
    /// Reads rows.
    Select {
        /// Table name.
        table: String,
        /// All must hold.
        conditions: Vec<Condition>,
        /// Columns wanted; empty for all.
        columns: Vec<String>,
    },
    /// Overwrites columns.
    Update {
        /// Table name.
        table: String,
        /// All must hold.
        conditions: Vec<Condition>,
        /// New values.
        row: Columns,
    },
    /// Changes columns in place.
    Mutate {
        /// Table name.
        table: String,
        /// All must hold.
        conditions: Vec<Condition>,
        /// Changes, in order.
        mutations: Vec<(String, Mutator, Datum)>,
    },
    /// Deletes rows.
    Delete {
        /// Table name.
        table: String,
        /// All must hold.
        conditions: Vec<Condition>,
    },
    /// Waits until rows are, or are no more, as given.
    Wait {
        /// Table name.
        table: String,
        /// All must hold.
        conditions: Vec<Condition>,
        /// Columns to compare.
        columns: Vec<String>,
        /// Rows to compare with.
        rows: Vec<Columns>,
        /// What to wait for.
        until: Until,
        /// How long; without limit if absent.
        timeout: Option<Duration>,
    },
    /// Writes a comment into the server's log.
    Comment(String),
    /// Fails with `not owner` unless this client owns the lock.
    Assert(String),
    /// Fails.
    Abort,
}

impl Operation {
    /// Verb and table, for messages.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Insert { table, .. } => format!("insert {table}"),
            Self::Select { table, .. } => format!("select {table}"),
            Self::Update { table, .. } => format!("update {table}"),
            Self::Mutate { table, .. } => format!("mutate {table}"),
            Self::Delete { table, .. } => format!("delete {table}"),
            Self::Wait { table, .. } => format!("wait {table}"),
            Self::Comment(_) => "comment".to_owned(),
            Self::Assert(lock) => format!("assert {lock}"),
            Self::Abort => "abort".to_owned(),
        }
    }
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut op = serializer.serialize_map(None)?;
        match self {
            Self::Insert { table, row, name, uuid } => {
                op.serialize_entry("op", "insert")?;
                op.serialize_entry("table", table)?;
                op.serialize_entry("row", row)?;
                op.serialize_entry("uuid-name", name)?;
                if let Some(uuid) = uuid {
                    op.serialize_entry("uuid", uuid)?;
                }
            }
            Self::Select { table, conditions, columns } => {
                op.serialize_entry("op", "select")?;
                op.serialize_entry("table", table)?;
                op.serialize_entry("where", conditions)?;
                if !columns.is_empty() {
                    op.serialize_entry("columns", columns)?;
                }
            }
            Self::Update { table, conditions, row } => {
                op.serialize_entry("op", "update")?;
                op.serialize_entry("table", table)?;
                op.serialize_entry("where", conditions)?;
                op.serialize_entry("row", row)?;
            }
            Self::Mutate { table, conditions, mutations } => {
                op.serialize_entry("op", "mutate")?;
                op.serialize_entry("table", table)?;
                op.serialize_entry("where", conditions)?;
                let wire: Vec<_> = mutations
                    .iter()
                    .map(|(column, mutator, value)| (column, mutator.wire(), value))
                    .collect();
                op.serialize_entry("mutations", &wire)?;
            }
            Self::Delete { table, conditions } => {
                op.serialize_entry("op", "delete")?;
                op.serialize_entry("table", table)?;
                op.serialize_entry("where", conditions)?;
            }
            Self::Wait { table, conditions, columns, rows, until, timeout } => {
                op.serialize_entry("op", "wait")?;
                op.serialize_entry("table", table)?;
                op.serialize_entry("where", conditions)?;
                op.serialize_entry("columns", columns)?;
                op.serialize_entry("rows", rows)?;
                op.serialize_entry("until", if *until == Until::Equal { "==" } else { "!=" })?;
                if let Some(timeout) = timeout {
                    op.serialize_entry("timeout", &u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))?;
                }
            }
            Self::Comment(text) => {
                op.serialize_entry("op", "comment")?;
                op.serialize_entry("comment", text)?;
            }
            Self::Assert(lock) => {
                op.serialize_entry("op", "assert")?;
                op.serialize_entry("lock", lock)?;
            }
            Self::Abort => op.serialize_entry("op", "abort")?,
        }
        op.end()
    }
}

/// `[database, operation, ...]`
pub(crate) struct Params<'a> {
    pub(super) database: &'a str,
    pub(super) operations: &'a [Operation],
}

impl Serialize for Params<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.operations.len() + 1))?;
        seq.serialize_element(self.database)?;
        for operation in self.operations {
            seq.serialize_element(operation)?;
        }
        seq.end()
    }
}
