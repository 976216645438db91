//! What all units together want, with reference counts: a row or an edge lives as long as one unit wants it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ovsdb_client::Datum;

use crate::plan::{Edge, Item, Member, RowKey, Unit};

/// Columns of a row that the plan decides.
pub type Columns = BTreeMap<&'static str, Datum>;

#[derive(Debug)]
struct WantedRow {
    columns: Arc<Columns>,
    units: u32,
}

/// What a unit holds, without the columns, which the row has.
#[derive(Debug, Default)]
struct Held {
    rows: BTreeSet<RowKey>,
    edges: BTreeSet<Edge>,
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
}

/// Everything that is wanted.
#[derive(Debug, Default)]
pub struct Wanted {
    units: HashMap<Unit, Held>,
    rows: HashMap<RowKey, WantedRow>,
    /// By owner: column and member.
    edges: HashMap<RowKey, BTreeMap<(&'static str, Member), u32>>,
    /// By member: owner and column.
    parents: HashMap<RowKey, BTreeMap<(RowKey, &'static str), u32>>,
}

impl Wanted {
    /// Replaces what a unit wants and adds what this changes to `touched`. With `all`, everything that the unit wants is
    /// touched, changed or not.
    pub fn set(&mut self, unit: &Unit, items: Vec<Item>, all: bool, touched: &mut Touched) {
        let mut new = Held::default();
        let old = self.units.remove(unit).unwrap_or_default();
        for item in items {
            match item {
                Item::Row(row) => {
                    if !new.rows.insert(row.key.clone()) {
                        continue;
                    }
                    let counted = u32::from(!old.rows.contains(&row.key));
                    let entry = self.rows.entry(row.key.clone());
                    let fresh = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
                    let entry = entry.or_insert_with(|| WantedRow { columns: Arc::default(), units: 0 });
                    entry.units += counted;
                    if fresh || *entry.columns != row.columns {
                        entry.columns = Arc::new(row.columns);
                        touched.rows.insert(row.key);
                    } else if all {
                        touched.rows.insert(row.key);
                    }
                }
                Item::Edge(edge) => {
                    if !new.edges.insert(edge.clone()) {
                        continue;
                    }
                    let came = !old.edges.contains(&edge) && self.count_edge(&edge);
                    if came || all {
                        touched.edges.insert(edge);
                    }
                }
            }
        }
        for key in old.rows.difference(&new.rows) {
            if let Some(row) = self.rows.get_mut(key) {
                row.units -= 1;
                if row.units == 0 {
                    self.rows.remove(key);
                    touched.rows.insert(key.clone());
                }
            }
        }
        for edge in old.edges.difference(&new.edges) {
            if self.uncount_edge(edge) {
                touched.edges.insert(edge.clone());
            }
        }
        if !new.rows.is_empty() || !new.edges.is_empty() {
            self.units.insert(unit.clone(), new);
        }
    }

    /// True when the edge is new.
    fn count_edge(&mut self, edge: &Edge) -> bool {
        if let Member::Row(member) = &edge.member {
            let parents = self.parents.entry(member.clone()).or_default();
            *parents.entry((edge.owner.clone(), edge.column)).or_default() += 1;
        }
        let members = self.edges.entry(edge.owner.clone()).or_default();
        let count = members.entry((edge.column, edge.member.clone())).or_default();
        *count += 1;
        *count == 1
    }

    /// True when nobody wants the edge any more.
    fn uncount_edge(&mut self, edge: &Edge) -> bool {
        if let Member::Row(member) = &edge.member {
            drop_one(&mut self.parents, member, &(edge.owner.clone(), edge.column));
        }
        drop_one(&mut self.edges, &edge.owner, &(edge.column, edge.member.clone()))
    }

    /// Columns of a wanted row.
    pub fn row(&self, key: &RowKey) -> Option<&Arc<Columns>> {
        self.rows.get(key).map(|row| &row.columns)
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
            .flat_map(|owners| owners.keys().map(|(owner, column)| (owner, *column)))
    }

    /// Units that want something.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units.keys()
    }

    /// Wanted rows.
    pub fn rows(&self) -> impl Iterator<Item = &RowKey> {
        self.rows.keys()
    }
}

/// Lowers a count; true when it reached zero.
fn drop_one<K: Ord>(map: &mut HashMap<RowKey, BTreeMap<K, u32>>, key: &RowKey, member: &K) -> bool {
    let Some(members) = map.get_mut(key) else { return false };
    let gone = match members.get_mut(member) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => {
            members.remove(member);
            true
        }
        None => false,
    };
    if members.is_empty() {
        map.remove(key);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{DesiredRow, Table};

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
            wanted.set(unit, items, false, &mut touched);
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
    fn the_same_items_again_touch_nothing_unless_asked() {
        let mut wanted = Wanted::default();
        let mut touched = Touched::default();
        wanted.set(&Unit::Cluster, items("x"), false, &mut Touched::default());
        wanted.set(&Unit::Cluster, items("x"), false, &mut touched);
        assert!(touched.is_empty());
        wanted.set(&Unit::Cluster, items("x"), true, &mut touched);
        assert_eq!((touched.rows.len(), touched.edges.len()), (1, 1));
    }
}
