//! One table of a replica: rows by identifier, and the indexes.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use uuid::Uuid;

use super::changes::RowChange;
use super::protocol::MonitorProtocol;
use super::wire::{self, Sink};
use crate::sorted::Kept;
use crate::{Condition, Row};

/// The rows of a monitored table.
pub struct Table<R: Row> {
    rows: HashMap<Uuid, Arc<R>>,
    indexes: Vec<Index<R>>,
    /// Evaluated here only where the server cannot (`monitor` of RFC 7047).
    conditions: Vec<Condition>,
    kept: Kept,
}

struct Index<R> {
    name: &'static str,
    keys: fn(&R) -> Vec<String>,
    /// By a key's hash: the keys are in the rows, and there are hundreds of thousands.
    map: HashMap<u64, Holders>,
    hasher: RandomState,
}

/// The rows that have a key: mostly one. Never empty.
enum Holders {
    One(Uuid),
    /// In order.
    Many(BTreeSet<Uuid>),
}

impl Holders {
    fn add(&mut self, uuid: Uuid) {
        match self {
            Self::One(one) if *one == uuid => {}
            Self::One(one) => *self = Self::Many(BTreeSet::from([*one, uuid])),
            Self::Many(many) => {
                many.insert(uuid);
            }
        }
    }

    /// Removes a row; returns whether none is left.
    fn remove(&mut self, uuid: Uuid) -> bool {
        match self {
            Self::One(one) => *one == uuid,
            Self::Many(many) => {
                many.remove(&uuid);
                many.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Uuid> {
        let (one, many) = match self {
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl<R: Row> Index<R> {
    fn add(&mut self, row: &R) {
        for key in (self.keys)(row) {
            let holders = self.map.entry(self.hasher.hash_one(&*key));
            holders.or_insert_with(|| Holders::One(row.uuid())).add(row.uuid());
        }
    }

    fn remove(&mut self, row: &R) {
        for key in (self.keys)(row) {
            let hash = self.hasher.hash_one(&*key);
            if self.map.get_mut(&hash).is_some_and(|holders| holders.remove(row.uuid())) {
                self.map.remove(&hash);
            }
        }
    }
}

impl<R: Row> Table<R> {
    pub(super) fn new(conditions: Vec<Condition>) -> Self {
        Self { rows: HashMap::new(), indexes: Vec::new(), conditions, kept: Kept::default() }
    }

    pub(super) fn add_index(&mut self, name: &'static str, keys: fn(&R) -> Vec<String>) {
        self.indexes.push(Index { name, keys, map: HashMap::new(), hasher: RandomState::new() });
    }

    /// The row with this identifier.
    pub fn get(&self, uuid: &Uuid) -> Option<&Arc<R>> {
        self.rows.get(uuid)
    }

    /// All rows, in no order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<R>> {
        self.rows.values()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows that the index of this name has under the key, ordered by identifier.
    ///
    /// # Panics
    /// When the [`super::MonitorSpec`] declared no such index: a mistake in the program.
    pub fn by_index<'a>(&'a self, index: &str, key: &str) -> impl Iterator<Item = &'a Arc<R>> + use<'a, R> {
        let index = self
            .indexes
            .iter()
            .find(|one| one.name == index)
            .unwrap_or_else(|| panic!("table {} has no index {index:?}", R::TABLE));
        let holders = index.map.get(&index.hasher.hash_one(key));
        let rows = holders.into_iter().flat_map(Holders::iter).filter_map(|uuid| self.rows.get(uuid));
        // Two keys may have one hash.
        rows.filter(|row| (index.keys)(row).iter().any(|one| one == key)).collect::<Vec<_>>().into_iter()
    }

    /// The row as it is kept.
    fn kept(&mut self, mut row: R) -> Arc<R> {
        row.share(&mut self.kept);
        Arc::new(row)
    }

    fn put(&mut self, row: Arc<R>, changes: &mut Vec<RowChange>) {
        let old = self.rows.insert(row.uuid(), Arc::clone(&row));
        if old.as_deref() == Some(&*row) {
            return;
        }
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(old);
            }
            index.add(&row);
        }
        changes.push(RowChange::new(row.uuid(), old, Some(row)));
    }

    fn remove(&mut self, uuid: &Uuid, changes: &mut Vec<RowChange>) {
        if let Some(old) = self.rows.remove(uuid) {
            for index in &mut self.indexes {
                index.remove(&old);
            }
            changes.push(RowChange::new(*uuid, Some(old), None));
        }
    }

    fn wanted(&self, row: &R, protocol: MonitorProtocol) -> bool {
        protocol != MonitorProtocol::Monitor
            || self.conditions.is_empty()
            || self.conditions.iter().any(|condition| condition.matches(row))
    }
}

impl<R: Row> fmt::Debug for Table<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("name", &R::TABLE)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}

/// A table whose row type is not known to the caller.
pub(crate) trait AnyTable: Any + Send + Sync + fmt::Debug {
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    /// Applies one table's part of an update.
    fn update(
        &mut self,
        json: &str,
        protocol: MonitorProtocol,
        changes: &mut Vec<RowChange>,
    ) -> Result<(), serde_json::Error>;
    /// Replaces the contents and tells the net difference. `None`: the table is empty.
    fn load(
        &mut self,
        json: Option<&str>,
        protocol: MonitorProtocol,
        changes: &mut Vec<RowChange>,
    ) -> Result<(), serde_json::Error>;
}

impl<R: Row> AnyTable for Table<R> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn update(
        &mut self,
        json: &str,
        protocol: MonitorProtocol,
        changes: &mut Vec<RowChange>,
    ) -> Result<(), serde_json::Error> {
        wire::read(json, &mut Updating { table: self, protocol, changes })
    }

    fn load(
        &mut self,
        json: Option<&str>,
        protocol: MonitorProtocol,
        changes: &mut Vec<RowChange>,
    ) -> Result<(), serde_json::Error> {
        let mut fresh = Fresh { rows: Vec::new(), kept: &mut self.kept };
        if let Some(json) = json {
            wire::read(json, &mut fresh)?;
        }
        let rows = fresh.rows;
        let mut gone = std::mem::take(&mut self.rows);
        self.rows.reserve(rows.len());
        for row in rows {
            if !self.wanted(&row, protocol) {
                continue;
            }
            if let Some(old) = gone.remove(&row.uuid()) {
                self.rows.insert(old.uuid(), old);
            }
            self.put(row, changes);
        }
        for old in gone.into_values() {
            let uuid = old.uuid();
            self.rows.insert(uuid, old);
            self.remove(&uuid, changes);
        }
        Ok(())
    }
}

/// Applies rows as they are read.
struct Updating<'a, R: Row> {
    table: &'a mut Table<R>,
    protocol: MonitorProtocol,
    changes: &'a mut Vec<RowChange>,
}

impl<R: Row> Sink<R> for Updating<'_, R> {
    fn old(&self, uuid: &Uuid) -> Option<&R> {
        self.table.rows.get(uuid).map(|row| &**row)
    }

    fn put(&mut self, row: R) {
        if self.table.wanted(&row, self.protocol) {
            let row = self.table.kept(row);
            self.table.put(row, self.changes);
        } else {
            self.table.remove(&row.uuid(), self.changes);
        }
    }

    fn remove(&mut self, uuid: &Uuid) {
        self.table.remove(uuid, self.changes);
    }
}

/// Collects rows of a full load.
struct Fresh<'a, R> {
    rows: Vec<Arc<R>>,
    kept: &'a mut Kept,
}

impl<R: Row> Sink<R> for Fresh<'_, R> {
    fn old(&self, _uuid: &Uuid) -> Option<&R> {
        None
    }

    fn put(&mut self, mut row: R) {
        row.share(self.kept);
        self.rows.push(Arc::new(row));
    }

    fn remove(&mut self, _uuid: &Uuid) {}
}
