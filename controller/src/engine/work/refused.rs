//! What the database refuses. A refused transaction is sent again in halves, until the refused part is alone: then everything else is
//! in the database. The refused part is left out of all other transactions, and tried again with growing delays.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::atoms::{self, Atom};
use crate::plan::RowKey;
use crate::reconcile::Desired;
use crate::unit::Unit;

/// First wait before something refused is tried again; doubled up to [`MAX_WAIT`].
const MIN_WAIT: Duration = Duration::from_secs(30);
/// Longest wait.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Names a refused part: the unit, and the row if it is one of a large unit.
type Name = (Option<Unit>, Option<RowKey>);

#[derive(Debug)]
struct Entry {
    atom: Atom,
    wait: Duration,
    /// `None` while it is being tried.
    at: Option<Instant>,
}

/// Result of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) enum Refusal {
    /// The portion is sent again in smaller pieces.
    Divided,
    /// This unit, repair or removal is refused by itself.
    Alone(Option<Unit>),
}

/// Refused units and rows, and pieces to be sent.
#[derive(Debug, Default)]
pub(super) struct Refused {
    pieces: VecDeque<Vec<Atom>>,
    alone: BTreeMap<Name, Entry>,
    barred: BTreeSet<RowKey>,
}

fn name(atom: &Atom) -> Name {
    (atom.units.first().cloned(), atom.touched.rows.first().cloned())
}

impl Refused {
    /// Drops everything: a full comparison will find it again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Number of refused units and rows.
    pub(super) fn len(&self) -> usize {
        self.alone.len()
    }

    /// Whether there is a piece to be sent.
    pub(super) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Rows that must be left out.
    pub(super) fn barred(&self) -> &BTreeSet<RowKey> {
        &self.barred
    }

    /// Takes a portion that was sent and refused.
    pub(super) fn add(&mut self, sent: Vec<Atom>, desired: &Desired, now: Instant) -> Refusal {
        let mut atoms: Vec<Atom> =
            sent.into_iter().flat_map(|atom| atoms::take_apart(atom, desired)).collect();
        if atoms.len() > 1 {
            let second = atoms.split_off(atoms.len() / 2);
            self.pieces.push_back(atoms);
            self.pieces.push_back(second);
            return Refusal::Divided;
        }
        let Some(atom) = atoms.pop() else { return Refusal::Alone(None) };
        let unit = atom.units.first().cloned();
        let entry = self.alone.entry(name(&atom)).or_insert_with(|| Entry {
            atom: Atom::default(),
            wait: MIN_WAIT / 2,
            at: None,
        });
        entry.atom = atom;
        entry.wait = (entry.wait * 2).min(MAX_WAIT);
        entry.at = Some(now + entry.wait);
        self.bar(desired);
        Refusal::Alone(unit)
    }

    /// The next piece to send, and the rows that it must leave out.
    pub(super) fn next_piece(&mut self) -> (Vec<Atom>, BTreeSet<RowKey>) {
        let atoms = self.pieces.pop_front().unwrap_or_default();
        let own: BTreeSet<&RowKey> = atoms.iter().flat_map(|atom| &atom.touched.rows).collect();
        let barred = self.barred.iter().filter(|key| !own.contains(key)).cloned().collect();
        (atoms, barred)
    }

    /// The pieces that were tried are in the database.
    pub(super) fn succeeded(&mut self, atoms: &[Atom], desired: &Desired) {
        let before = self.alone.len();
        for atom in atoms {
            self.alone.remove(&name(atom));
        }
        if self.alone.len() != before {
            self.bar(desired);
        }
    }

    /// Units were planned again because their objects changed: they get another attempt.
    pub(super) fn planned(&mut self, units: &BTreeSet<Unit>, desired: &Desired) {
        let before = self.alone.len();
        self.alone.retain(|(unit, _), _| unit.as_ref().is_none_or(|unit| !units.contains(unit)));
        if self.alone.len() != before {
            self.bar(desired);
        }
    }

    /// The time of the next attempt.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.alone.values().filter_map(|entry| entry.at).min()
    }

    /// Tries again what has waited long enough, as it is now wanted.
    pub(super) fn retry(&mut self, now: Instant, desired: &Desired) {
        for ((unit, _), entry) in &mut self.alone {
            if entry.at.is_none_or(|at| at > now) {
                continue;
            }
            entry.at = None;
            let mut atom = entry.atom.clone();
            if let Some(unit) = unit
                && !unit.is_divisible()
            {
                for now in atoms::of_unit(unit, desired) {
                    atom.touched.extend(now.touched);
                }
            }
            self.pieces.push_back(vec![atom]);
        }
    }

    /// Bars the rows that only refused units want.
    fn bar(&mut self, desired: &Desired) {
        let mut refused: HashMap<&RowKey, u32> = HashMap::new();
        for key in self.alone.values().flat_map(|entry| &entry.atom.touched.rows) {
            *refused.entry(key).or_default() += 1;
        }
        let only =
            refused.into_iter().filter(|(key, count)| desired.units_of(key).is_some_and(|all| all <= *count));
        self.barred = only.map(|(key, _)| key.clone()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{DesiredRow, Item, Table};
    use crate::reconcile::Touched;
    use api::NamespacedName;

    fn set(name: &str) -> RowKey {
        RowKey::new(Table::AddressSet, name)
    }

    fn unit(name: &str) -> Unit {
        Unit::Policy(NamespacedName::new("x", name))
    }

    /// Two policies with a set of their own each and one in common.
    fn desired() -> Desired {
        let mut desired = Desired::default();
        for name in ["a", "b"] {
            let rows = [name, "common"].map(|name| Item::from(DesiredRow::new(set(name)).with("name", name)));
            desired.set(&unit(name), rows.to_vec(), &mut Touched::default());
        }
        desired
    }

    fn together(desired: &Desired) -> Atom {
        let mut atom = Atom { units: vec![unit("a"), unit("b")], touched: Touched::default() };
        for unit in &atom.units {
            atom.touched.rows.extend(desired.of_unit(unit).rows);
        }
        atom
    }

    #[test]
    fn what_is_refused_is_found_by_halves_and_left_out_of_the_rest() {
        let (desired, now) = (desired(), Instant::now());
        let mut refused = Refused::default();
        assert_eq!(refused.add(vec![together(&desired)], &desired, now), Refusal::Divided);
        let (first, _) = refused.next_piece();
        assert_eq!(refused.add(first, &desired, now), Refusal::Alone(Some(unit("a"))));
        // A row that the other policy also wants is not left out.
        assert_eq!(refused.barred().iter().collect::<Vec<_>>(), [&set("a")]);
        let (second, barred) = refused.next_piece();
        assert_eq!((second[0].units.clone(), barred.len()), (vec![unit("b")], 1));
        refused.succeeded(&second, &desired);
        assert_eq!((refused.len(), refused.has_pieces()), (1, false));
    }

    #[test]
    fn a_row_is_left_out_when_all_who_want_it_are_refused() {
        let (desired, now) = (desired(), Instant::now());
        let mut refused = Refused::default();
        for name in ["a", "b"] {
            let atom = atoms::of_unit(&unit(name), &desired).into_iter().collect();
            refused.add(atom, &desired, now);
        }
        assert!(refused.barred().contains(&set("common")));
    }

    #[test]
    fn it_is_tried_again_later_and_later_and_at_once_when_it_changed() {
        let (desired, now) = (desired(), Instant::now());
        let mut refused = Refused::default();
        let atoms: Vec<Atom> = atoms::of_unit(&unit("a"), &desired).into_iter().collect();
        refused.add(atoms.clone(), &desired, now);
        assert_eq!(refused.retry_at(), Some(now + MIN_WAIT));
        refused.retry(now, &desired);
        assert!(!refused.has_pieces());
        refused.retry(now + MIN_WAIT, &desired);
        let (piece, barred) = refused.next_piece();
        assert!(barred.is_empty(), "it does not leave out itself");
        refused.add(piece, &desired, now);
        assert_eq!(refused.retry_at(), Some(now + 2 * MIN_WAIT));
        refused.planned(&BTreeSet::from([unit("a")]), &desired);
        assert_eq!((refused.len(), refused.barred().len()), (0, 0));
    }
}
