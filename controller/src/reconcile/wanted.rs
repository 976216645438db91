//! What all units together want, with reference counts: a row or an edge lives as long as one unit wants it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ovsdb_client::Datum;

use super::shared::Shared;
use crate::plan::{DesiredRow, Edge, Item, Member, RowKey, Unit};

/// Columns of a row that the plan decides, by name in order.
pub type Columns = Arc<[(&'static str, Arc<Datum>)]>;

#[derive(Debug)]
struct WantedRow {
    columns: Columns,
    units: u32,
}

/// What a unit holds, without the columns, which the row has. Sorted.
#[derive(Debug, Default)]
struct Held {
    rows: Box<[RowKey]>,
    edges: Box<[Edge]>,
}

/// Rows and edges to compare with the database.
#[derive(Debug, Default, Clone)]
pub struct Touched {
    /// Rows that came, went or changed.
    pub rows: BTreeSet<RowKey>,
    /// Edges that came or went.
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

    /// Adds what another one has.
    pub fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.edges.extend(other.edges);
    }
}

/// Everything that is wanted.
#[derive(Debug, Default)]
pub struct Wanted {
    units: HashMap<Unit, Held>,
    rows: HashMap<RowKey, WantedRow>,
    /// By owner: column and member.
    edges: HashMap<RowKey, BTreeMap<(&'static str, Member), u32>>,
    /// By member: owner and column, sorted.
    parents: HashMap<RowKey, Vec<(RowKey, &'static str, u32)>>,
    shared: Shared,
}

impl Wanted {
    /// Replaces what a unit wants and adds what this changes to `touched`. Answers with the rows that another unit wants
    /// with other columns: those stay as they are.
    pub fn set(&mut self, unit: &Unit, items: Vec<Item>, touched: &mut Touched) -> Vec<RowKey> {
        let old = self.units.remove(unit).unwrap_or_default();
        let mut rows = Vec::new();
        let mut edges = Vec::new();
        let mut conflicts = Vec::new();
        for item in items {
            match item {
                Item::Row(row) => {
                    let key = self.shared.row_key(row.key.clone());
                    let had = old.rows.binary_search(&key).is_ok();
                    if !self.want_row(&key, row, had, touched) {
                        conflicts.push(key.clone());
                    }
                    rows.push(key);
                }
                Item::Edge(edge) => edges.push(self.shared.edge(edge)),
            }
        }
        sort(&mut rows);
        sort(&mut edges);
        for key in rows.iter().filter(|key| old.rows.binary_search(key).is_err()) {
            if let Some(row) = self.rows.get_mut(key) {
                row.units += 1;
            }
        }
        for edge in edges.iter().filter(|edge| old.edges.binary_search(edge).is_err()) {
            if self.count_edge(edge) {
                touched.edges.insert(edge.clone());
            }
        }
        for key in old.rows.iter().filter(|key| rows.binary_search(key).is_err()) {
            self.let_go(key, touched);
        }
        for edge in old.edges.iter().filter(|edge| edges.binary_search(edge).is_err()) {
            if self.uncount_edge(edge) {
                touched.edges.insert(edge.clone());
            }
        }
        if !rows.is_empty() || !edges.is_empty() {
            self.units.insert(
                unit.clone(),
                Held { rows: rows.into_boxed_slice(), edges: edges.into_boxed_slice() },
            );
        }
        self.shared.tidy();
        conflicts
    }

    /// Takes a row's columns; false when another unit wants others. `had`: the unit has wanted the row before.
    fn want_row(&mut self, key: &RowKey, row: DesiredRow, had: bool, touched: &mut Touched) -> bool {
        let shared = &mut self.shared;
        let columns: Columns =
            row.columns.into_iter().map(|(column, value)| (column, shared.value(value))).collect();
        match self.rows.get_mut(key) {
            Some(known) if known.columns == columns => {}
            Some(known) => {
                if known.units > u32::from(had) {
                    return false;
                }
                known.columns = columns;
                touched.rows.insert(key.clone());
            }
            None => {
                self.rows.insert(key.clone(), WantedRow { columns, units: 0 });
                // Others may have wanted edges of it before it was there, and the database may hold it already.
                self.touch(key, touched);
            }
        }
        true
    }

    fn let_go(&mut self, key: &RowKey, touched: &mut Touched) {
        if let Some(row) = self.rows.get_mut(key) {
            row.units -= 1;
            if row.units == 0 {
                self.rows.remove(key);
                touched.rows.insert(key.clone());
            }
        }
    }

    /// True when the edge is new.
    fn count_edge(&mut self, edge: &Edge) -> bool {
        if let Member::Row(member) = &edge.member {
            let parents = self.parents.entry(member.clone()).or_default();
            match parents
                .binary_search_by(|(owner, column, _)| (owner, *column).cmp(&(&edge.owner, edge.column)))
            {
                Ok(at) => parents[at].2 += 1,
                Err(at) => {
                    // Most rows have one, and there are very many.
                    parents.reserve_exact(1);
                    parents.insert(at, (edge.owner.clone(), edge.column, 1));
                }
            }
        }
        let members = self.edges.entry(edge.owner.clone()).or_default();
        let count = members.entry((edge.column, edge.member.clone())).or_default();
        *count += 1;
        *count == 1
    }

    /// True when nobody wants the edge any more.
    fn uncount_edge(&mut self, edge: &Edge) -> bool {
        if let Member::Row(member) = &edge.member
            && let Some(parents) = self.parents.get_mut(member)
        {
            if let Ok(at) = parents
                .binary_search_by(|(owner, column, _)| (owner, *column).cmp(&(&edge.owner, edge.column)))
            {
                parents[at].2 -= 1;
                if parents[at].2 == 0 {
                    parents.remove(at);
                }
            }
            if parents.is_empty() {
                self.parents.remove(member);
            }
        }
        let Some(members) = self.edges.get_mut(&edge.owner) else { return false };
        let place = (edge.column, edge.member.clone());
        let gone = match members.get_mut(&place) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            Some(_) => members.remove(&place).is_some(),
            None => false,
        };
        if members.is_empty() {
            self.edges.remove(&edge.owner);
        }
        gone
    }

    /// Columns of a wanted row.
    pub fn row(&self, key: &RowKey) -> Option<&Columns> {
        self.rows.get(key).map(|row| &row.columns)
    }

    /// Number of units that want a row; `None` for one that nobody wants.
    pub fn units_of(&self, key: &RowKey) -> Option<u32> {
        self.rows.get(key).map(|row| row.units)
    }

    /// Whether an edge is wanted.
    pub fn has_edge(&self, owner: &RowKey, column: &'static str, member: &Member) -> bool {
        self.edges.get(owner).is_some_and(|members| members.contains_key(&(column, member.clone())))
    }

    /// Wanted edges out of a row.
    pub fn edges_of(&self, owner: &RowKey) -> impl Iterator<Item = (&'static str, &Member)> {
        self.edges
            .get(owner)
            .into_iter()
            .flat_map(|members| members.keys().map(|(column, member)| (*column, member)))
    }

    /// Owner and column of the wanted edges into a row.
    pub fn parents_of(&self, member: &RowKey) -> impl Iterator<Item = (&RowKey, &'static str)> {
        self.parents
            .get(member)
            .into_iter()
            .flat_map(|owners| owners.iter().map(|(owner, column, _)| (owner, *column)))
    }

    /// Units that want something.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units.keys()
    }

    /// Wanted rows.
    pub fn rows(&self) -> impl Iterator<Item = &RowKey> {
        self.rows.keys()
    }

    /// Rows and edges that a unit wants.
    pub fn of_unit(&self, unit: &Unit) -> (&[RowKey], &[Edge]) {
        self.units.get(unit).map_or((&[], &[]), |held| (&held.rows, &held.edges))
    }

    /// A row with all edges into it and out of it, for comparing it as a whole.
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
        let mut wanted = Wanted::default();
        let (a, b) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        let mut set = |unit: &Unit, items: Vec<Item>| {
            let mut touched = Touched::default();
            assert!(wanted.set(unit, items, &mut touched).is_empty());
            (touched.rows.len(), touched.edges.len())
        };
        assert_eq!(set(&a, items("x")), (1, 1));
        assert_eq!(set(&b, items("x")), (0, 0));
        assert_eq!(set(&a, vec![]), (0, 0));
        assert_eq!(set(&b, items("y")), (1, 0));
        assert_eq!(set(&b, vec![]), (1, 1));
        assert_eq!(wanted.rows().count() + wanted.units().count(), 0);
    }

    #[test]
    fn the_same_items_again_touch_nothing() {
        let mut wanted = Wanted::default();
        let mut touched = Touched::default();
        wanted.set(&Unit::Cluster, items("x"), &mut Touched::default());
        wanted.set(&Unit::Cluster, items("x"), &mut touched);
        assert!(touched.is_empty());
        let (rows, edges) = wanted.of_unit(&Unit::Cluster);
        assert_eq!((rows.len(), edges.len()), (1, 1));
    }

    #[test]
    fn a_row_that_comes_later_touches_the_edges_that_were_wanted_before_it() {
        let mut wanted = Wanted::default();
        let (first, second) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        wanted.set(&first, vec![Item::text(&group(), "addresses", "10.0.0.1")], &mut Touched::default());
        let mut touched = Touched::default();
        wanted.set(&second, vec![DesiredRow::new(group()).with("name", "x").into()], &mut touched);
        assert_eq!((touched.rows.len(), touched.edges.len()), (1, 1));
    }

    #[test]
    fn a_unit_cannot_change_a_row_that_another_wants_as_it_is() {
        let mut wanted = Wanted::default();
        let (a, b) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        wanted.set(&a, items("x"), &mut Touched::default());
        let mut touched = Touched::default();
        assert_eq!(wanted.set(&b, items("y"), &mut touched), [group()]);
        assert!(touched.rows.is_empty());
        let name = Datum::from("x");
        assert_eq!(wanted.row(&group()).map(|columns| &*columns[0].1), Some(&name));
        // Once nobody else wants it, it is the unit's own.
        wanted.set(&a, vec![], &mut Touched::default());
        assert!(wanted.set(&b, items("y"), &mut touched).is_empty());
        assert_eq!(touched.rows.len(), 1);
    }
}
