//! Atoms: rows and edges that must be sent in one transaction.

use std::collections::{BTreeMap, VecDeque};

use crate::plan::{Member, RowKey};
use crate::reconcile::{Desired, Touched};
use crate::unit::Unit;

/// A unit of independent rows with at least this many rows and edges is divided.
pub(super) const LARGE: usize = 256;

/// Rows and edges that belong in one transaction.
#[derive(Debug, Clone, Default)]
pub(super) struct Atom {
    /// The units whose rows and edges these are.
    pub(super) units: Vec<Unit>,
    pub(super) touched: Touched,
}

/// The desired rows and edges of a unit, in one atom; or, if its rows are independent and many, in one atom for each row.
pub(super) fn of_unit(unit: &Unit, desired: &Desired) -> VecDeque<Atom> {
    let touched = desired.of_unit(unit);
    if unit.is_divisible() && touched.len() > LARGE {
        return by_row(unit, touched);
    }
    VecDeque::from([Atom { units: vec![unit.clone()], touched }])
}

/// An atom for each row with the edges into it.
pub(super) fn by_row(unit: &Unit, touched: Touched) -> VecDeque<Atom> {
    let mut parts: BTreeMap<RowKey, Touched> = BTreeMap::new();
    for edge in touched.edges {
        let key = match &edge.member {
            Member::Row(row) => row.clone(),
            Member::Text(_) => edge.owner.clone(),
        };
        parts.entry(key).or_default().edges.insert(edge);
    }
    for row in touched.rows {
        parts.entry(row.clone()).or_default().rows.insert(row);
    }
    parts.into_values().map(|touched| Atom { units: vec![unit.clone()], touched }).collect()
}

/// The parts of an atom of several units: each unit's desired rows and edges, and what none of the units wants any more.
pub(super) fn take_apart(atom: Atom, desired: &Desired) -> Vec<Atom> {
    if atom.units.len() < 2 {
        return vec![atom];
    }
    let mut rest = atom.touched;
    rest.rows.retain(|key| desired.row(key).is_none());
    rest.edges.retain(|edge| !desired.has_edge(&edge.owner, edge.column, &edge.member));
    let mut atoms: Vec<Atom> = atom.units.iter().flat_map(|unit| of_unit(unit, desired)).collect();
    if !rest.is_empty() {
        atoms.push(Atom { units: Vec::new(), touched: rest });
    }
    atoms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{DesiredRow, Edge, Item, Table};
    use api::NamespacedName;

    fn balancer(at: usize) -> [Item; 2] {
        let key = RowKey::new(Table::LoadBalancer, format!("lb{at}"));
        let switch = RowKey::new(Table::LogicalSwitch, format!("n{at}"));
        [
            DesiredRow::new(key.clone()).with("name", key.key.clone()).into(),
            Item::link(&switch, "load_balancer", &key),
        ]
    }

    #[test]
    fn a_service_on_many_nodes_is_one_atom_for_each_of_its_rows() {
        let unit = Unit::Service(NamespacedName::new("x", "s"));
        let mut desired = Desired::default();
        let items = |count| (0..count).flat_map(balancer).collect();
        desired.set(&unit, items(10), &mut Touched::default());
        assert_eq!(of_unit(&unit, &desired).len(), 1);
        desired.set(&unit, items(500), &mut Touched::default());
        let atoms = of_unit(&unit, &desired);
        assert_eq!(atoms.len(), 500);
        assert!(atoms.iter().all(|atom| (atom.touched.rows.len(), atom.touched.edges.len()) == (1, 1)));
    }

    #[test]
    fn what_is_taken_apart_keeps_what_is_to_go() {
        let mut desired = Desired::default();
        let (a, b) = (Unit::Node("a".to_owned()), Unit::Node("b".to_owned()));
        desired.set(&a, balancer(1).to_vec(), &mut Touched::default());
        let gone = RowKey::new(Table::LoadBalancer, "gone");
        let mut touched = Touched::default();
        desired.touch(&RowKey::new(Table::LoadBalancer, "lb1"), &mut touched);
        touched.rows.insert(gone.clone());
        touched.edges.insert(Edge { owner: gone.clone(), column: "x", member: Member::Text("y".to_owned()) });
        let atoms = take_apart(Atom { units: vec![a, b], touched }, &desired);
        let sizes: Vec<_> =
            atoms.iter().map(|atom| (atom.touched.rows.len(), atom.touched.edges.len())).collect();
        assert_eq!(sizes, [(1, 1), (0, 0), (1, 1)]);
        assert!(atoms[2].touched.rows.contains(&gone));
    }
}
