//! The difference between what is wanted and what is there, for the rows and edges that something touched, as the fewest
//! operations: one insert a new row with everything in it, one update a changed row, one mutation a changed set.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ovsdb_client::{Atom, Condition, Datum, Mutator, Transaction, Uuid};

use super::wanted::{Columns, Touched, Wanted};
use crate::plan::{Edge, Member, RowKey, Table};

/// What the database holds.
pub trait Actual {
    /// Rows that the key names; more than one only in tables without a unique index.
    fn find_all(&self, key: &RowKey) -> Vec<Uuid>;
    /// A column's value.
    fn column(&self, table: Table, uuid: Uuid, column: &str) -> Option<Datum>;
    /// Whether a set column contains a value.
    fn contains(&self, table: Table, uuid: Uuid, column: &str, member: &Atom) -> bool;
    /// Whether the server's schema has the column.
    fn has_column(&self, table: Table, column: &str) -> bool;
    /// Rows whose strong reference holds a row of a non-root table.
    fn holders(&self, table: Table, uuid: Uuid) -> Vec<(Table, Uuid, &'static str)>;
}

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

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is there.
    Present(Uuid),
    /// It is to be inserted.
    Insert,
    /// It cannot be: not wanted, or nothing that would hold it is there yet.
    Absent,
}

/// Operations to be sent.
#[derive(Debug, Default)]
pub struct Changes {
    inserts: BTreeMap<RowKey, (Columns, BTreeMap<&'static str, BTreeSet<Value>>)>,
    updates: BTreeMap<(Table, Uuid), BTreeMap<&'static str, NewValue>>,
    sets: BTreeMap<(Table, Uuid), BTreeMap<&'static str, SetChange>>,
    deletes: BTreeSet<(Table, Uuid)>,
}

/// New value of a column: given, or a reference to one row.
#[derive(Debug)]
enum NewValue {
    Datum(Datum),
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
        // Names are given first, as rows may refer to each other in any order.
        let names: HashMap<RowKey, String> =
            self.inserts.keys().enumerate().map(|(at, key)| (key.clone(), format!("new{at}"))).collect();
        let atom = |value: Value| match value {
            Value::Atom(atom) => atom,
            Value::New(key) => Atom::NamedUuid(names.get(&key).cloned().unwrap_or_default()),
        };
        for (key, (columns, sets)) in self.inserts {
            let mut row: BTreeMap<String, Datum> =
                columns.into_iter().map(|(column, value)| (column.to_owned(), value)).collect();
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
                    NewValue::Datum(datum) => (column, datum),
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

/// Compares what was touched.
pub fn compare(wanted: &Wanted, actual: &dyn Actual, touched: &Touched) -> Changes {
    let mut differ =
        Differ { wanted, actual, states: HashMap::new(), changes: Changes::default(), queue: Vec::new() };
    for key in &touched.rows {
        differ.row(key);
    }
    for edge in &touched.edges {
        differ.edge(&edge.owner, edge.column, &edge.member);
    }
    differ.drain();
    differ.changes
}

struct Differ<'a> {
    wanted: &'a Wanted,
    actual: &'a dyn Actual,
    states: HashMap<RowKey, State>,
    changes: Changes,
    /// Rows found to be inserted, whose edges have not been looked at yet.
    queue: Vec<RowKey>,
}

impl Differ<'_> {
    fn state(&mut self, key: &RowKey) -> State {
        if let Some(state) = self.states.get(key) {
            return *state;
        }
        // References run from roots down, so a row never holds itself; this only guards the recursion.
        self.states.insert(key.clone(), State::Absent);
        let state = self.find_state(key);
        self.states.insert(key.clone(), state);
        if state == State::Insert {
            self.queue.push(key.clone());
        }
        state
    }

    fn find_state(&mut self, key: &RowKey) -> State {
        let wanted = self.wanted;
        let found = self.actual.find_all(key);
        if wanted.row(key).is_none() {
            return found.first().map_or(State::Absent, |uuid| State::Present(*uuid));
        }
        if key.table.is_root() {
            return found.first().map_or(State::Insert, |uuid| State::Present(*uuid));
        }
        let mut holdable = false;
        let parents: Vec<_> =
            wanted.parents_of(key).filter(|(owner, column)| owner.table.is_strong(column)).collect();
        for (owner, column) in parents {
            match self.state(owner) {
                State::Present(parent) => {
                    let holds =
                        |uuid: &&Uuid| self.actual.contains(owner.table, parent, column, &Atom::Uuid(**uuid));
                    if let Some(uuid) = found.iter().find(holds) {
                        return State::Present(*uuid);
                    }
                    holdable |= wanted.row(owner).is_some();
                }
                State::Insert => holdable = true,
                State::Absent => {}
            }
        }
        if !holdable {
            return State::Absent;
        }
        // A row of this name under another owner (a pod that moved): a new one takes its place, as the port's logical
        // datapath is another one.
        if key.table.has_unique_name() {
            for uuid in found {
                for (table, holder, column) in self.actual.holders(key.table, uuid) {
                    self.changes.remove(table, holder, column, Atom::Uuid(uuid));
                }
            }
        }
        State::Insert
    }

    fn row(&mut self, key: &RowKey) {
        let state = self.state(key);
        match (self.wanted.row(key), state) {
            (Some(columns), State::Present(uuid)) => {
                for (column, value) in columns.iter() {
                    if self.actual.has_column(key.table, column)
                        && self.actual.column(key.table, uuid, column).as_ref() != Some(value)
                    {
                        let row = self.changes.updates.entry((key.table, uuid)).or_default();
                        row.insert(column, NewValue::Datum(value.clone()));
                    }
                }
            }
            (Some(_), State::Absent) => {
                tracing::debug!(
                    table = key.table.name(),
                    key = key.key,
                    "row waits for the row that holds it"
                );
            }
            // Rows of other tables go with the edge that holds them.
            (None, State::Present(uuid)) if key.table.is_root() => self.changes.delete(key.table, uuid),
            _ => {}
        }
    }

    fn insert(&mut self, key: &RowKey) {
        let wanted = self.wanted;
        let Some(columns) = wanted.row(key) else { return };
        let actual = self.actual;
        let columns = columns
            .iter()
            .filter(|(column, value)| !value.is_empty() && actual.has_column(key.table, column))
            .map(|(column, value)| (*column, value.clone()))
            .collect();
        self.changes.inserts.entry(key.clone()).or_default().0 = columns;
        let edges: Vec<_> =
            wanted.edges_of(key).map(|(column, member)| (key.clone(), column, member.clone())).collect();
        let parents: Vec<_> = wanted
            .parents_of(key)
            .map(|(owner, column)| (owner.clone(), column, Member::Row(key.clone())))
            .collect();
        for (owner, column, member) in edges.into_iter().chain(parents) {
            self.edge(&owner, column, &member);
        }
    }

    fn drain(&mut self) {
        while let Some(key) = self.queue.pop() {
            self.insert(&key);
        }
    }

    fn edge(&mut self, owner: &RowKey, column: &'static str, member: &Member) {
        if !self.actual.has_column(owner.table, column) {
            return;
        }
        if self.wanted.has_edge(owner, column, member) {
            self.add_edge(owner, column, member);
        } else {
            self.drop_edge(owner, column, member);
        }
    }

    fn add_edge(&mut self, owner: &RowKey, column: &'static str, member: &Member) {
        let owner_state = if self.wanted.row(owner).is_some() { self.state(owner) } else { State::Absent };
        if owner_state == State::Absent {
            return;
        }
        let value = match member {
            Member::Text(text) => Value::Atom(Atom::String(text.clone())),
            Member::Row(row) => match self.state(row) {
                State::Present(uuid) if self.wanted.row(row).is_some() => Value::Atom(Atom::Uuid(uuid)),
                State::Insert => Value::New(row.clone()),
                _ => return,
            },
        };
        match owner_state {
            State::Insert => {
                let (_, sets) = self.changes.inserts.entry(owner.clone()).or_default();
                sets.entry(column).or_default().insert(value);
            }
            State::Present(uuid) => {
                if let Value::Atom(atom) = &value
                    && self.actual.contains(owner.table, uuid, column, atom)
                {
                    return;
                }
                if owner.table.is_single(column) {
                    let row = self.changes.updates.entry((owner.table, uuid)).or_default();
                    row.insert(column, NewValue::Reference(value));
                } else {
                    self.changes.set(owner.table, uuid, column).insert.insert(value);
                }
            }
            State::Absent => {}
        }
    }

    fn drop_edge(&mut self, owner: &RowKey, column: &'static str, member: &Member) {
        // What goes takes its edges along.
        if self.wanted.row(owner).is_none() {
            return;
        }
        let State::Present(uuid) = self.state(owner) else { return };
        let atoms: Vec<Atom> = match member {
            Member::Text(text) => vec![Atom::String(text.clone())],
            // The server takes weak references to a deleted row out by itself.
            Member::Row(row) if !owner.table.is_strong(column) && self.wanted.row(row).is_none() => return,
            Member::Row(row) => self.actual.find_all(row).into_iter().map(Atom::Uuid).collect(),
        };
        for atom in atoms {
            if self.actual.contains(owner.table, uuid, column, &atom) {
                self.changes.remove(owner.table, uuid, column, atom);
            }
        }
    }
}

/// Everything that a row and its edges touch, for comparing it as a whole.
pub fn touch_row(wanted: &Wanted, key: &RowKey, touched: &mut Touched) {
    touched.rows.insert(key.clone());
    touched.edges.extend(wanted.edges_of(key).map(|(column, member)| Edge {
        owner: key.clone(),
        column,
        member: member.clone(),
    }));
    touched.edges.extend(wanted.parents_of(key).map(|(owner, column)| Edge {
        owner: owner.clone(),
        column,
        member: Member::Row(key.clone()),
    }));
}
