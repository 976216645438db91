//! Transactions: building them and reading what came of them.

mod operation;
mod result;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{Atom, Condition, Datum, Error};
pub(crate) use operation::Params;
pub use operation::{Mutator, Operation, Until};
pub use result::OpResult;

/// Columns with their values.
pub type Columns = BTreeMap<String, Datum>;

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
    /// Without a timeout it waits without limit; with a zero one it is a check that fails with `timed out`.
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

    /// The longest time the server may hold the reply back, `None` for no limit.
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

    /// Reads the reply to `transact`.
    pub(crate) fn results(&self, reply: &RawValue) -> Result<Vec<OpResult>, Error> {
        result::read(&self.operations, reply)
    }
}
