//! Transactions: building the operations (RFC 7047 section 5.2) and reading their results.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{Atom, Condition, Datum, Error};

/// Columns with their values.
pub type Columns = BTreeMap<String, Datum>;

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
    /// They differ.
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
        /// How long; for ever if absent.
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
    fn label(&self) -> String {
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

/// A list of operations that the server carries out together or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transaction {
    operations: Vec<Operation>,
}

fn columns<K: Into<String>>(columns: impl IntoIterator<Item = (K, Datum)>) -> Columns {
    columns.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// The operations in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Adds an operation made by hand.
    pub fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    /// Inserts a row. The result refers to it within this transaction; the final identifier is in [`OpResult::uuid`].
    pub fn insert<K: Into<String>>(
        &mut self,
        table: &str,
        row: impl IntoIterator<Item = (K, Datum)>,
    ) -> Atom {
        self.insert_row(table, columns(row), None)
    }

    /// Inserts a row with a chosen identifier (needs Open vSwitch 2.13 or later).
    pub fn insert_with_uuid<K: Into<String>>(
        &mut self,
        table: &str,
        uuid: Uuid,
        row: impl IntoIterator<Item = (K, Datum)>,
    ) -> Atom {
        self.insert_row(table, columns(row), Some(uuid))
    }

    fn insert_row(&mut self, table: &str, row: Columns, uuid: Option<Uuid>) -> Atom {
        let name = format!("row{}", self.operations.len());
        self.operations.push(Operation::Insert { table: table.to_owned(), row, name: name.clone(), uuid });
        Atom::NamedUuid(name)
    }

    /// Overwrites columns of the rows for which all conditions hold.
    pub fn update<K: Into<String>>(
        &mut self,
        table: &str,
        conditions: Vec<Condition>,
        row: impl IntoIterator<Item = (K, Datum)>,
    ) {
        self.operations.push(Operation::Update { table: table.to_owned(), conditions, row: columns(row) });
    }

    /// Changes columns in place.
    pub fn mutate<K: Into<String>>(
        &mut self,
        table: &str,
        conditions: Vec<Condition>,
        mutations: impl IntoIterator<Item = (K, Mutator, Datum)>,
    ) {
        let mutations =
            mutations.into_iter().map(|(column, mutator, value)| (column.into(), mutator, value)).collect();
        self.operations.push(Operation::Mutate { table: table.to_owned(), conditions, mutations });
    }

    /// Deletes the rows for which all conditions hold.
    pub fn delete(&mut self, table: &str, conditions: Vec<Condition>) {
        self.operations.push(Operation::Delete { table: table.to_owned(), conditions });
    }

    /// Reads rows; no columns means all.
    pub fn select(&mut self, table: &str, conditions: Vec<Condition>, columns: &[&str]) {
        let columns = columns.iter().map(|&c| c.to_owned()).collect();
        self.operations.push(Operation::Select { table: table.to_owned(), conditions, columns });
    }

    /// Waits until the rows for which all conditions hold are, in these columns, equal (or not) to the rows given.
    /// Without a timeout it waits for ever; with a zero one it is a check that fails with `timed out`.
    pub fn wait(
        &mut self,
        table: &str,
        conditions: Vec<Condition>,
        columns: &[&str],
        rows: Vec<Columns>,
        until: Until,
        timeout: Option<Duration>,
    ) {
        let columns = columns.iter().map(|&c| c.to_owned()).collect();
        self.operations.push(Operation::Wait {
            table: table.to_owned(),
            conditions,
            columns,
            rows,
            until,
            timeout,
        });
    }

    /// Leaves a comment in the server's transaction log.
    pub fn comment(&mut self, text: impl Into<String>) {
        self.operations.push(Operation::Comment(text.into()));
    }

    /// Lets the transaction fail with `not owner` unless this client owns the lock (see [`crate::Client::lock`]).
    pub fn assert_lock(&mut self, name: &str) {
        self.operations.push(Operation::Assert(name.to_owned()));
    }

    /// Lets the transaction fail with `aborted`.
    pub fn abort(&mut self) {
        self.operations.push(Operation::Abort);
    }

    /// The longest time the server may hold the reply back, `None` for ever.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        let mut waits = self.operations.iter().filter_map(|op| match op {
            Operation::Wait { timeout, .. } => Some(*timeout),
            _ => None,
        });
        waits.try_fold(Duration::ZERO, |sum, wait| Some(sum.saturating_add(wait?)))
    }

    /// Parameters of `transact`.
    pub(crate) fn params<'a>(&'a self, database: &'a str) -> Params<'a> {
        Params { database, operations: &self.operations }
    }

    /// Reads the reply: one result an operation, `null` after the one that failed, one more for a failed commit
    /// (RFC 7047 section 4.1.3).
    pub(crate) fn results(&self, reply: &RawValue) -> Result<Vec<OpResult>, Error> {
        let replies: Vec<Option<WireResult>> = serde_json::from_str(reply.get())
            .map_err(|error| Error::Protocol(format!("reply to transact: {error}")))?;
        let mut results = Vec::with_capacity(self.operations.len());
        for (index, reply) in replies.into_iter().enumerate() {
            let reply = reply.unwrap_or_default();
            if let Some(error) = reply.error {
                let details = reply.details.unwrap_or_default();
                return Err(match self.operations.get(index) {
                    Some(operation) => Error::Operation { index, op: operation.label(), error, details },
                    None => Error::Commit { error, details },
                });
            }
            let uuid = reply.uuid.as_ref().and_then(Datum::as_uuid);
            results.push(OpResult { count: reply.count, uuid, rows: reply.rows.unwrap_or_default() });
        }
        if results.len() < self.operations.len() {
            return Err(Error::Protocol(format!(
                "{} results for {} operations",
                results.len(),
                self.operations.len()
            )));
        }
        results.truncate(self.operations.len());
        Ok(results)
    }
}

/// `[database, operation, ...]`
pub(crate) struct Params<'a> {
    database: &'a str,
    operations: &'a [Operation],
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

#[derive(Default, Deserialize)]
struct WireResult {
    error: Option<String>,
    details: Option<String>,
    count: Option<u64>,
    uuid: Option<Datum>,
    rows: Option<Vec<Columns>>,
}

/// Result of one operation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpResult {
    /// Rows touched by `update`, `mutate` and `delete`.
    pub count: Option<u64>,
    /// Identifier of the row of `insert`.
    pub uuid: Option<Uuid>,
    /// Rows read by `select`.
    pub rows: Vec<Columns>,
}
