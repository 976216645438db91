//! The difference between desired and observed rows, for the rows and edges that were touched, as the fewest operations: one
//! insert for a new row with all its columns, one update for a changed row, one mutation for a changed set.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ovsdb_client::{Atom, Condition, Datum, Mutator, Transaction, Uuid};

use super::desired::{Desired, Touched};
use super::observed::ReplicaView;
use crate::plan::{Member, RowKey, Table};

/// A member of a set as an operation names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Atom(Atom),
    /// A row that the same transaction inserts.
    New(RowKey),
}

/// Changes of one set column.
#[derive(Debug, Default)]
struct SetChange {
    insert: BTreeSet<Value>,
    delete: BTreeSet<Atom>,
}

/// The state of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The row exists, with this UUID.
    Present(Uuid),
    /// The row is to be inserted.
    Insert,
    /// The row cannot exist: it is not wanted, or no row that would hold it is there yet.
    Absent,
}

/// A row to be inserted: its columns, and the members of its sets.
type NewRow = (Vec<(&'static str, Arc<Datum>)>, BTreeMap<&'static str, BTreeSet<Value>>);

/// Operations to be sent.
#[derive(Debug, Default)]
pub struct Changes {
    inserts: BTreeMap<RowKey, NewRow>,
    updates: BTreeMap<(Table, Uuid), BTreeMap<&'static str, NewValue>>,
    sets: BTreeMap<(Table, Uuid), BTreeMap<&'static str, SetChange>>,
    deletes: BTreeSet<(Table, Uuid)>,
    /// Approximate size of all operations on the wire, bytes.
    bytes: usize,
}

/// New value of a column: given, or a reference to one row.
#[derive(Debug)]
enum NewValue {
    Datum(Arc<Datum>),
    Reference(Value),
}

impl Changes {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.inserts.is_empty() && self.updates.is_empty() && self.sets.is_empty() && self.deletes.is_empty()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.inserts.len() + self.updates.len() + self.sets.len() + self.deletes.len()
    }

    /// Approximate size of the operations on the wire, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes out as many independent removals as one transaction may hold; for changes that have neither inserts nor updates.
    pub fn split_removals(&mut self, operations: usize, members: usize) -> Self {
        let mut first = Self::default();
        let mut taken = 0;
        while first.len() < operations && taken < members {
            if let Some((row, columns)) = self.sets.pop_first() {
                let members = columns.values().map(|change| change.delete.len()).sum::<usize>();
                taken += members;
                first.bytes += OPERATION_BYTES + members * MEMBER_BYTES;
                first.sets.insert(row, columns);
            } else if let Some(row) = self.deletes.pop_first() {
                first.deletes.insert(row);
                first.bytes += OPERATION_BYTES;
            } else {
                break;
            }
        }
        first
    }

    /// Deletes a row of a root table.
    pub fn delete(&mut self, table: Table, uuid: Uuid) {
        self.deletes.insert((table, uuid));
    }

    /// Takes a member out of a set.
    pub fn remove(&mut self, table: Table, uuid: Uuid, column: &'static str, member: Atom) {
        self.set(table, uuid, column).delete.insert(member);
    }

    fn set(&mut self, table: Table, uuid: Uuid, column: &'static str) -> &mut SetChange {
        self.sets.entry((table, uuid)).or_default().entry(column).or_default()
    }

    /// Adds the operations to a transaction.
    pub fn write(self, transaction: &mut Transaction) {
        // Names are assigned first, as rows may refer to each other in any order.
        let names: HashMap<RowKey, String> =
            self.inserts.keys().enumerate().map(|(at, key)| (key.clone(), format!("new{at}"))).collect();
        let atom = |value: Value| match value {
            Value::Atom(atom) => atom,
            Value::New(key) => Atom::NamedUuid(names.get(&key).cloned().unwrap_or_default()),
        };
        for (key, (columns, sets)) in self.inserts {
            let mut row: BTreeMap<String, Datum> =
                columns.into_iter().map(|(column, value)| (column.to_owned(), (*value).clone())).collect();
            for (column, members) in sets {
                row.insert(column.to_owned(), Datum::set(members.into_iter().map(&atom)));
            }
            transaction.push(ovsdb_client::Operation::Insert {
                table: key.table.name().to_owned(),
                row,
                name: names.get(&key).cloned().unwrap_or_default(),
                uuid: None,
            });
        }
        for ((table, uuid), columns) in self.updates {
            let row: Vec<(&str, Datum)> = columns
                .into_iter()
                .map(|(column, value)| match value {
                    NewValue::Datum(datum) => (column, (*datum).clone()),
                    NewValue::Reference(value) => (column, Datum::from(atom(value))),
                })
                .collect();
            transaction.update(table.name(), vec![Condition::uuid(uuid)], row);
        }
        for ((table, uuid), columns) in self.sets {
            if self.deletes.contains(&(table, uuid)) {
                continue;
            }
            let mut mutations = Vec::new();
            for (column, change) in columns {
                if !change.delete.is_empty() {
                    mutations.push((column, Mutator::Delete, Datum::set(change.delete)));
                }
                if !change.insert.is_empty() {
                    mutations.push((
                        column,
                        Mutator::Insert,
                        Datum::set(change.insert.into_iter().map(&atom)),
                    ));
                }
            }
            transaction.mutate(table.name(), vec![Condition::uuid(uuid)], mutations);
        }
        for (table, uuid) in self.deletes {
            transaction.delete(table.name(), vec![Condition::uuid(uuid)]);
        }
    }
}

/// Compares the touched rows and edges.
pub fn compare(desired: &Desired, observed: &ReplicaView<'_>, touched: &Touched) -> Changes {
    let none = BTreeSet::new();
    let mut differ = Differ::new(desired, observed, &none);
    differ.look_at(touched);
    differ.into_changes()
}

/// Compares rows and edges one by one and collects the differences.
///
/// The insert of a row includes what the row cannot be without: the row that holds it; the rows in whose sets it belongs
/// (a pod's port is never there without being in its port groups); and the rows that those consist of (a port group is never
/// there without its ACLs). It does not include every other row that belongs to those: they are compared by themselves, so that
/// the size of a transaction depends only on what it is about.
pub struct Differ<'a> {
    desired: &'a Desired,
    observed: &'a ReplicaView<'a>,
    /// Rows that the database refuses; left as they are.
    barred: &'a BTreeSet<RowKey>,
    states: HashMap<RowKey, State>,
    /// Rows that are in `changes.inserts` or will be.
    inserted: HashSet<RowKey>,
    changes: Changes,
    /// Rows to be inserted whose edges have not been looked at yet.
    queue: Vec<RowKey>,
}

impl<'a> Differ<'a> {
    /// A new comparison, with an empty result.
    pub fn new(desired: &'a Desired, observed: &'a ReplicaView<'a>, barred: &'a BTreeSet<RowKey>) -> Self {
        Self {
            desired,
            observed,
            barred,
            states: HashMap::new(),
            inserted: HashSet::new(),
            changes: Changes::default(),
            queue: Vec::new(),
        }
    }

    /// Adds the differences of these rows and edges.
    pub fn look_at(&mut self, touched: &Touched) {
        for key in &touched.rows {
            self.row(key);
        }
        for edge in &touched.edges {
            self.edge(&edge.owner, edge.column, &edge.member);
        }
        self.drain();
    }

    /// Number of operations so far.
    pub fn operations(&self) -> usize {
        self.changes.len()
    }

    /// Approximate size of the operations on the wire, bytes.
    pub fn bytes(&self) -> usize {
        self.changes.bytes
    }

    /// The differences found.
    pub fn into_changes(self) -> Changes {
        self.changes
    }

    fn state(&mut self, key: &RowKey) -> State {
        if let Some(state) = self.states.get(key) {
            return *state;
        }
        // References run from roots down, so a row never holds itself; this only guards the recursion.
        self.states.insert(key.clone(), State::Absent);
        let state = self.find_state(key);
        self.states.insert(key.clone(), state);
        state
    }

    /// The state of a row that is part of the transaction: inserted if need be.
    fn pull(&mut self, key: &RowKey) -> State {
        let state = self.state(key);
        if state == State::Insert && self.inserted.insert(key.clone()) {
            if let Some(parent) = self.holder_to_insert(key) {
                self.pull(&parent);
            }
            self.queue.push(key.clone());
        }
        state
    }

    /// For a row that needs another one to hold it: the holder, if it is wanted and not there either.
    fn holder_to_insert(&mut self, key: &RowKey) -> Option<RowKey> {
        if key.table.is_root() {
            return None;
        }
        let desired = self.desired;
        let holders = desired.parents_of(key).filter(|(owner, column)| owner.table.is_strong(column));
        let mut missing = None;
        for (owner, _) in holders {
            match self.state(owner) {
                State::Present(_) if desired.row(owner).is_some() => return None,
                State::Insert => missing = Some(owner.clone()),
                _ => {}
            }
        }
        missing
    }

    fn find_state(&mut self, key: &RowKey) -> State {
        let desired = self.desired;
        if self.barred.contains(key) {
            return State::Absent;
        }
        let found = self.observed.find_all(key);
        if desired.row(key).is_none() {
            return found.first().map_or(State::Absent, |uuid| State::Present(*uuid));
        }
        if key.table.is_root() {
            return found.first().map_or(State::Insert, |uuid| State::Present(*uuid));
        }
        // A port that cannot be put into one of its groups is not inserted: without a group it would be open.
        let grouped = |(owner, _): &(&RowKey, &'static str)| {
            owner.table == Table::PortGroup && self.barred.contains(*owner)
        };
        if found.is_empty()
            && key.table == Table::LogicalSwitchPort
            && desired.parents_of(key).any(|p| grouped(&p))
        {
            return State::Absent;
        }
        let mut holdable = false;
        let parents: Vec<_> =
            desired.parents_of(key).filter(|(owner, column)| owner.table.is_strong(column)).collect();
        for (owner, column) in parents {
            match self.state(owner) {
                State::Present(parent) => {
                    let holds = |uuid: &&Uuid| {
                        self.observed.contains(owner.table, parent, column, &Atom::Uuid(**uuid))
                    };
                    if let Some(uuid) = found.iter().find(holds) {
                        return State::Present(*uuid);
                    }
                    holdable |= desired.row(owner).is_some();
                }
                State::Insert => holdable = true,
                State::Absent => {}
            }
        }
        if holdable { State::Insert } else { State::Absent }
    }

    /// Removes a row of this name under another owner (a pod that moved): the port is on another logical datapath.
    fn make_room(&mut self, key: &RowKey) {
        if !key.table.has_unique_name() {
            return;
        }
        for uuid in self.observed.find_all(key) {
            for (table, holder, column) in self.observed.holders(key.table, uuid) {
                self.changes.remove(table, holder, column, Atom::Uuid(uuid));
            }
        }
    }

    fn row(&mut self, key: &RowKey) {
        let state = self.pull(key);
        match (self.desired.row(key), state) {
            (Some(columns), State::Present(uuid)) => {
                for (column, value) in columns.iter() {
                    if self.observed.has_column(key.table, column)
                        && self.observed.column(key.table, uuid, column).as_ref() != Some(&**value)
                    {
                        self.changes.bytes += OPERATION_BYTES + size(value);
                        let row = self.changes.updates.entry((key.table, uuid)).or_default();
                        row.insert(column, NewValue::Datum(Arc::clone(value)));
                    }
                }
            }
            (Some(_), State::Absent) => {
                tracing::debug!(
                    table = key.table.name(),
                    key = key.key.as_str(),
                    "row waits for the row that holds it, or is refused"
                );
            }
            // Rows of other tables are deleted with the edge that holds them.
            (None, State::Present(uuid)) if key.table.is_root() => self.changes.delete(key.table, uuid),
            _ => {}
        }
    }

    fn insert(&mut self, key: &RowKey) {
        let desired = self.desired;
        let Some(columns) = desired.row(key) else { return };
        self.make_room(key);
        let observed = self.observed;
        let columns: Vec<_> = columns
            .iter()
            .filter(|(column, value)| !value.is_empty() && observed.has_column(key.table, column))
            .map(|(column, value)| (column, Arc::clone(value)))
            .collect();
        self.changes.bytes +=
            OPERATION_BYTES + columns.iter().map(|(name, value)| name.len() + size(value)).sum::<usize>();
        self.changes.inserts.entry(key.clone()).or_default().0 = columns;
        for (column, member) in desired.edges_of(key) {
            if self.comes_along(key, column, member) {
                self.edge(key, column, member);
            }
        }
        let member = Member::Row(key.clone());
        for (owner, column) in desired.parents_of(key) {
            self.edge(owner, column, &member);
        }
    }

    /// Whether a member is written together with its owner's insert: rows that are already there, and the owner's parts.
    fn comes_along(&mut self, owner: &RowKey, column: &'static str, member: &Member) -> bool {
        match member {
            Member::Text(_) => true,
            Member::Row(row) => {
                self.inserted.contains(row)
                    || owner.table.is_made_of(column)
                    || matches!(self.state(row), State::Present(_))
            }
        }
    }

    fn drain(&mut self) {
        while let Some(key) = self.queue.pop() {
            self.insert(&key);
        }
    }

    fn edge(&mut self, owner: &RowKey, column: &'static str, member: &Member) {
        if !self.observed.has_column(owner.table, column) {
            return;
        }
        if self.desired.has_edge(owner, column, member) {
            self.add_edge(owner, column, member);
        } else {
            self.drop_edge(owner, column, member);
        }
    }

    fn add_edge(&mut self, owner: &RowKey, column: &'static str, member: &Member) {
        let owner_state = if self.desired.row(owner).is_some() { self.pull(owner) } else { State::Absent };
        if owner_state == State::Absent {
            return;
        }
        let value = match member {
            Member::Text(text) => Value::Atom(Atom::String(text.clone())),
            Member::Row(row) => match self.pull(row) {
                State::Present(uuid) if self.desired.row(row).is_some() => Value::Atom(Atom::Uuid(uuid)),
                State::Insert => Value::New(row.clone()),
                _ => return,
            },
        };
        match owner_state {
            State::Insert => {
                let (_, sets) = self.changes.inserts.entry(owner.clone()).or_default();
                if sets.entry(column).or_default().insert(value) {
                    self.changes.bytes += MEMBER_BYTES;
                }
            }
            State::Present(uuid) => {
                if let Value::Atom(atom) = &value
                    && self.observed.contains(owner.table, uuid, column, atom)
                {
                    return;
                }
                if owner.table.is_single(column) {
                    let row = self.changes.updates.entry((owner.table, uuid)).or_default();
                    row.insert(column, NewValue::Reference(value));
                    self.changes.bytes += OPERATION_BYTES;
                } else {
                    let set = self.changes.set(owner.table, uuid, column);
                    let frame = if set.insert.is_empty() { OPERATION_BYTES } else { 0 };
                    let member = if set.insert.insert(value) { MEMBER_BYTES } else { 0 };
                    self.changes.bytes += frame + member;
                }
            }
            State::Absent => {}
        }
    }

    fn drop_edge(&mut self, owner: &RowKey, column: &'static str, member: &Member) {
        // A deleted row takes its edges along.
        if self.desired.row(owner).is_none() {
            return;
        }
        let State::Present(uuid) = self.state(owner) else { return };
        let atoms: Vec<Atom> = match member {
            Member::Text(text) => vec![Atom::String(text.clone())],
            // The server removes weak references to a deleted row by itself.
            Member::Row(row) if !owner.table.is_strong(column) && self.desired.row(row).is_none() => return,
            Member::Row(row) => self.observed.find_all(row).into_iter().map(Atom::Uuid).collect(),
        };
        for atom in atoms {
            if self.observed.contains(owner.table, uuid, column, &atom) {
                self.changes.remove(owner.table, uuid, column, atom);
            }
        }
    }
}

/// Size of the frame of an operation on the wire: verb, table, condition.
const OPERATION_BYTES: usize = 120;
/// Size of a member of a set: `["uuid","..."]`.
const MEMBER_BYTES: usize = 50;

/// Approximate size of a value on the wire, bytes.
fn size(value: &Datum) -> usize {
    let atom = |atom: &Atom| match atom {
        Atom::String(text) => text.len() + 3,
        Atom::Uuid(_) | Atom::NamedUuid(_) => MEMBER_BYTES,
        Atom::Integer(_) | Atom::Real(_) | Atom::Boolean(_) => 8,
    };
    match value {
        Datum::Set(atoms) => atoms.iter().map(atom).sum(),
        Datum::Map(pairs) => pairs.iter().map(|(key, value)| 2 + atom(key) + atom(value)).sum(),
    }
}
