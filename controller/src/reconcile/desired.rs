//! What all units together want, with reference counts: a row or an edge lives as long as one unit wants it.

use std::collections::{BTreeSet, HashMap};

use super::graph::{Graph, Id, Link};
use super::shared::{Columns, Shared};
use crate::plan::{DesiredRow, Edge, Item, Member, RowKey};
use crate::unit::Unit;

/// The rows and edges of a unit, by numbers. Sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    rows: Box<[Id]>,
    links: Box<[Link]>,
}

/// Rows and edges to compare with the database.
#[derive(Debug, Default, Clone)]
pub struct Touched {
    /// Rows that were added, removed or changed.
    pub rows: BTreeSet<RowKey>,
    /// Edges that were added or removed.
    pub edges: BTreeSet<Edge>,
}

impl Touched {
    /// Whether there is nothing to compare.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.edges.is_empty()
    }

    /// Number of rows and edges.
    pub fn len(&self) -> usize {
        self.rows.len() + self.edges.len()
    }

    /// Adds the rows and edges of another one.
    pub fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.edges.extend(other.edges);
    }
}

/// Everything that is wanted.
#[derive(Debug, Default)]
pub struct Desired {
    units: HashMap<Unit, Held>,
    graph: Graph,
    shared: Shared,
    version: u64,
}

impl Desired {
    /// Replaces the items of a unit and adds what this changes to `touched`. Returns the rows that another unit wants with other
    /// columns: those stay as they are.
    pub fn set(&mut self, unit: &Unit, items: Vec<Item>, touched: &mut Touched) -> Vec<RowKey> {
        let old = self.units.remove(unit).unwrap_or_default();
        let mut rows = Vec::new();
        let mut links = Vec::new();
        let mut conflicts = Vec::new();
        for item in items {
            match item {
                Item::Row(row) => {
                    let id = self.graph.id(Member::Row(row.key.clone()));
                    let had = old.rows.binary_search(&id).is_ok();
                    let key = row.key.clone();
                    if !self.want_row(id, row, had, touched) {
                        conflicts.push(key);
                    }
                    rows.push(id);
                }
                Item::Edge(edge) => links.push(self.graph.link(edge)),
            }
        }
        sort(&mut rows);
        sort(&mut links);
        for id in rows.iter().filter(|id| old.rows.binary_search(id).is_err()) {
            self.graph.count(*id);
        }
        for link in links.iter().filter(|link| old.links.binary_search(link).is_err()) {
            if self.graph.count_link(*link) {
                touched.edges.extend(self.graph.edge(*link));
            }
        }
        for id in old.rows.iter().filter(|id| rows.binary_search(id).is_err()) {
            touched.rows.extend(self.graph.uncount(*id));
        }
        for link in old.links.iter().filter(|link| links.binary_search(link).is_err()) {
            touched.edges.extend(self.graph.uncount_link(*link));
        }
        let held = Held { rows: rows.into_boxed_slice(), links: links.into_boxed_slice() };
        self.version += u64::from(held != old);
        if !held.rows.is_empty() || !held.links.is_empty() {
            self.units.insert(unit.clone(), held);
        }
        self.shared.tidy();
        conflicts
    }

    /// Takes a row's columns; false when another unit wants others. `had`: the unit has wanted the row before.
    fn want_row(&mut self, id: Id, row: DesiredRow, had: bool, touched: &mut Touched) -> bool {
        let DesiredRow { key, columns } = row;
        let columns = self.shared.columns(columns);
        match self.graph.columns_of(id) {
            Some((known, _)) if *known == columns => {}
            Some((_, units)) => {
                if units > u32::from(had) {
                    return false;
                }
                self.graph.set_columns(id, columns);
                self.version += 1;
                touched.rows.insert(key);
            }
            None => {
                self.graph.set_columns(id, columns);
                self.version += 1;
                // Other units may have wanted its edges before it was there, and the database may hold it already.
                self.touch(&key, touched);
            }
        }
        true
    }

    /// A version number. Two equal numbers mean that the desired state has not changed in between.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Columns of a desired row; `None` if no unit wants the row.
    pub fn row(&self, key: &RowKey) -> Option<&Columns> {
        self.graph.row(key).map(|(columns, _)| columns)
    }

    /// Number of units that want a row; `None` if there is none.
    pub fn units_of(&self, key: &RowKey) -> Option<u32> {
        self.graph.row(key).map(|(_, units)| units)
    }

    /// Whether an edge is desired.
    pub fn has_edge(&self, owner: &RowKey, column: &'static str, member: &Member) -> bool {
        self.graph.has_edge(owner, column, member)
    }

    /// Desired edges out of a row.
    pub fn edges_of(&self, owner: &RowKey) -> impl Iterator<Item = (&'static str, &Member)> {
        self.graph.edges_of(owner)
    }

    /// Owner and column of the wanted edges into a row.
    pub fn parents_of(&self, member: &RowKey) -> impl Iterator<Item = (&RowKey, &'static str)> {
        self.graph.parents_of(member)
    }

    /// Units that want something.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units.keys()
    }

    /// Desired rows.
    pub fn rows(&self) -> impl Iterator<Item = &RowKey> {
        self.graph.rows()
    }

    /// Number of rows and edges that a unit wants.
    pub fn size_of(&self, unit: &Unit) -> usize {
        self.units.get(unit).map_or(0, |held| held.rows.len() + held.links.len())
    }

    /// Rows and edges that a unit wants.
    pub fn of_unit(&self, unit: &Unit) -> Touched {
        let Some(held) = self.units.get(unit) else { return Touched::default() };
        Touched {
            rows: held.rows.iter().filter_map(|id| self.graph.key(*id)).cloned().collect(),
            edges: held.links.iter().filter_map(|link| self.graph.edge(*link)).collect(),
        }
    }

    /// Adds a row, with all edges into it and out of it, to what is to be compared.
    pub fn touch(&self, key: &RowKey, touched: &mut Touched) {
        touched.rows.insert(key.clone());
        touched.edges.extend(self.edges_of(key).map(|(column, member)| Edge {
            owner: key.clone(),
            column,
            member: member.clone(),
        }));
        touched.edges.extend(self.parents_of(key).map(|(owner, column)| Edge {
            owner: owner.clone(),
            column,
            member: Member::Row(key.clone()),
        }));
    }
}

fn sort<T: Ord>(items: &mut Vec<T>) {
    items.sort_unstable();
    items.dedup();
}

#[cfg(test)]
mod tests {
    use ovsdb_client::Datum;

    use super::*;
    use crate::plan::Table;

    fn group() -> RowKey {
        RowKey::new(Table::AddressSet, "as")
    }

    fn items(value: &str) -> Vec<Item> {
        let row = DesiredRow::new(group()).with("name", value);
        vec![row.into(), Item::text(&group(), "addresses", "10.0.0.1")]
    }

    #[test]
    fn a_row_lives_until_the_last_unit_lets_go() {
        let mut desired = Desired::default();
        let (a, b) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        let mut set = |unit: &Unit, items: Vec<Item>| {
            let mut touched = Touched::default();
            let version = desired.version();
            assert!(desired.set(unit, items, &mut touched).is_empty());
            // Also when the database is not concerned: the number of units that want a row counts.
            assert!(desired.version() > version);
            (touched.rows.len(), touched.edges.len())
        };
        assert_eq!(set(&a, items("x")), (1, 1));
        assert_eq!(set(&b, items("x")), (0, 0));
        assert_eq!(set(&a, vec![]), (0, 0));
        assert_eq!(set(&b, items("y")), (1, 0));
        assert_eq!(set(&b, vec![]), (1, 1));
        assert_eq!(desired.rows().count() + desired.units().count(), 0);
    }

    #[test]
    fn the_same_items_again_touch_nothing() {
        let mut desired = Desired::default();
        let mut touched = Touched::default();
        desired.set(&Unit::Cluster, items("x"), &mut Touched::default());
        let version = desired.version();
        desired.set(&Unit::Cluster, items("x"), &mut touched);
        assert!(touched.is_empty());
        assert_eq!(desired.version(), version);
        let all = desired.of_unit(&Unit::Cluster);
        assert_eq!((all.rows.len(), all.edges.len()), (1, 1));
        assert_eq!(desired.size_of(&Unit::Cluster), 2);
        assert_eq!(desired.size_of(&Unit::Node("b".to_owned())), 0);
    }

    #[test]
    fn a_row_that_comes_later_touches_the_edges_that_were_wanted_before_it() {
        let mut desired = Desired::default();
        let (first, second) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        desired.set(&first, vec![Item::text(&group(), "addresses", "10.0.0.1")], &mut Touched::default());
        let mut touched = Touched::default();
        desired.set(&second, vec![DesiredRow::new(group()).with("name", "x").into()], &mut touched);
        assert_eq!((touched.rows.len(), touched.edges.len()), (1, 1));
    }

    #[test]
    fn a_unit_cannot_change_a_row_that_another_wants_as_it_is() {
        let mut desired = Desired::default();
        let (a, b) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        desired.set(&a, items("x"), &mut Touched::default());
        let mut touched = Touched::default();
        assert_eq!(desired.set(&b, items("y"), &mut touched), [group()]);
        assert!(touched.rows.is_empty());
        let name = Datum::from("x");
        let known = desired.row(&group()).and_then(|columns| columns.iter().next());
        assert_eq!(known.map(|(_, value)| &**value), Some(&name));
        // No other unit wants the row any more.
        desired.set(&a, vec![], &mut Touched::default());
        assert!(desired.set(&b, items("y"), &mut touched).is_empty());
        assert_eq!(touched.rows.len(), 1);
    }
}
