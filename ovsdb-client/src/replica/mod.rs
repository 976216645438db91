//! Replicas: typed copies of monitored tables, kept current by the session.

mod changes;
mod protocol;
mod spec;
mod table;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{broadcast, watch};

pub use changes::{Change, ChangeKind, ChangeStream, RowChange};
pub use protocol::MonitorProtocol;
pub use spec::MonitorSpec;
pub use table::Table;

use crate::{Row, Schema};
use spec::TableSpec;
use table::AnyTable;

/// Change messages kept for a slow reader before it gets [`Change::Resync`]. One message is one server update.
const CHANGE_BACKLOG: usize = 1024;

type TablesByName = HashMap<&'static str, Box<dyn AnyTable>>;

/// The tables, and a number that grows with every update of them.
#[derive(Debug)]
struct Tables {
    by_name: TablesByName,
    version: u64,
}

/// Read access to a replica at one point between two updates.
#[derive(Debug)]
pub struct Snapshot<'a> {
    tables: RwLockReadGuard<'a, Tables>,
}

impl Snapshot<'_> {
    /// A monitored table.
    ///
    /// # Panics
    /// When `R` was not named in the replica's [`MonitorSpec`]: a mistake in the program, not in its input.
    pub fn table<R: Row>(&self) -> &Table<R> {
        self.try_table()
            .unwrap_or_else(|| panic!("table {} is not part of this replica's MonitorSpec", R::TABLE))
    }

    /// A table, if it is monitored.
    pub fn try_table<R: Row>(&self) -> Option<&Table<R>> {
        self.tables.by_name.get(R::TABLE)?.as_any().downcast_ref()
    }

    /// A number that is the same for two snapshots of a replica only if nothing changed between them.
    pub fn version(&self) -> u64 {
        self.tables.version
    }
}

/// How the server words an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Everything there is: rows not mentioned are gone.
    Full,
    /// Changes to what is here.
    Update,
}

/// The replica's state, owned by the session and read by [`crate::Replica`]s.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: u64,
    specs: Vec<TableSpec>,
    tables: RwLock<Tables>,
    changes: broadcast::Sender<Arc<Vec<RowChange>>>,
    synced: watch::Sender<bool>,
    /// Last transaction seen (`monitor_cond_since`); kept over reconnects.
    last_transaction: Mutex<Option<String>>,
}

impl Core {
    pub(crate) fn new(id: u64, spec: MonitorSpec) -> Self {
        let (specs, by_name) = spec.into_parts();
        Self {
            id,
            specs,
            tables: RwLock::new(Tables { by_name, version: 0 }),
            changes: broadcast::channel(CHANGE_BACKLOG).0,
            synced: watch::channel(false).0,
            last_transaction: Mutex::new(None),
        }
    }

    /// The monitor requests, restricted to what the server's schema has.
    pub(crate) fn requests(&self, schema: &Schema, protocol: MonitorProtocol) -> serde_json::Value {
        let tables = self.specs.iter().filter(|spec| {
            let known = schema.has_table(spec.name);
            if !known {
                tracing::warn!(
                    database = schema.name,
                    table = spec.name,
                    "the server's schema lacks a monitored table; it stays empty"
                );
            }
            known
        });
        serde_json::Value::Object(
            tables.map(|spec| (spec.name.to_owned(), spec.request(schema, protocol))).collect(),
        )
    }

    /// Follows the changes that are reported from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<Vec<RowChange>>> {
        self.changes.subscribe()
    }

    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        // Recursive, so that a reader that holds one snapshot may take another while an update waits.
        Snapshot { tables: self.tables.read_recursive() }
    }

    pub(crate) fn last_transaction(&self) -> Option<String> {
        self.last_transaction.lock().clone()
    }

    pub(crate) fn set_last_transaction(&self, id: Option<String>) {
        *self.last_transaction.lock() = id;
    }

    pub(crate) fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub(crate) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    pub(crate) fn set_synced(&self, synced: bool) {
        self.synced.send_if_modified(|was| std::mem::replace(was, synced) != synced);
    }

    /// Applies `<table-updates>` or `<table-updates2>` and tells the change streams.
    pub(crate) fn apply(
        &self,
        updates: &RawValue,
        load: Load,
        protocol: MonitorProtocol,
    ) -> Result<(), serde_json::Error> {
        let mut changes = Vec::new();
        let result = self.apply_tables(updates, load, protocol, &mut changes);
        if result.is_err() {
            // Half an update may have been applied: only a full load is right after that.
            self.set_last_transaction(None);
        }
        if !changes.is_empty() {
            // Fails without a receiver, which is no error.
            let _ = self.changes.send(Arc::new(changes));
        }
        result
    }

    fn apply_tables(
        &self,
        updates: &RawValue,
        load: Load,
        protocol: MonitorProtocol,
        changes: &mut Vec<RowChange>,
    ) -> Result<(), serde_json::Error> {
        #[derive(Deserialize)]
        struct Updates<'a>(#[serde(borrow)] HashMap<&'a str, &'a RawValue>);
        let Updates(updates) = serde_json::from_str(updates.get())?;
        let mut tables = self.tables.write();
        tables.version += 1;
        match load {
            Load::Full => {
                for (name, table) in &mut tables.by_name {
                    table.load(updates.get(name).map(|raw| raw.get()), protocol, changes)?;
                }
            }
            Load::Update => {
                for (name, raw) in updates {
                    if let Some(table) = tables.by_name.get_mut(name) {
                        table.update(raw.get(), protocol, changes)?;
                    }
                }
            }
        }
        Ok(())
    }
}
