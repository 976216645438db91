//! Full comparison, in portions. First it removes what allows something and is not wanted, then it repairs every unit, in the units'
//! order, then it removes leftovers. A verification makes the same comparison without changing anything at first. It checks differences
//! a second time before it counts and repairs them.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::atoms::{self, Atom};
use super::{MAX_LOOKS, MAX_OPERATIONS, look, replan};
use crate::metrics::Metrics;
use crate::plan::RowKey;
use crate::reconcile::leftovers::{self, KeptGateways};
use crate::reconcile::{Changes, Desired, ReplicaView, Touched};
use crate::state::State;
use crate::unit::Unit;

/// Members of sets that one transaction removes at most.
const MAX_REMOVED: usize = 10_000;
/// Units that are compared at once.
const COMPARED_AT_ONCE: usize = 256;
/// A verification plans one of this many units again, the next verification others: planning costs as much as all the rest, and
/// can only show a mistake in which units an event makes dirty.
const PLANNED_OF: u64 = 8;

/// Why everything is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The database may differ.
    Repair,
    /// The database should not differ; the comparison is to prove that.
    Verification,
}

/// Everything on which the result of a comparison depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Compared {
    desired: u64,
    replica: u64,
    kept: KeptGateways,
}

impl Compared {
    /// The present state. `replica`: the version of the replica.
    pub(in crate::engine) fn now(state: &State, desired: &Desired, replica: u64) -> Self {
        Self { desired: desired.version(), replica, kept: state.kept_gateways() }
    }
}

/// The parameters of a verification.
#[derive(Debug)]
pub(super) struct Verification {
    /// Number of verifications before this one.
    pub(super) round: u64,
    /// What it compares, at its beginning.
    pub(super) compared: Compared,
    /// The last verification compared this state and found no difference: only planning is left to do.
    pub(super) is_known: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Removes what allows something and is not wanted.
    Closing,
    Units,
    /// The kinds of leftovers that are removed next.
    Leftovers(usize),
    /// A verification compares again the units that differed.
    Again,
    Over,
}

/// A comparison under way.
#[derive(Debug)]
pub(super) struct Full {
    pub(super) why: Why,
    stage: Stage,
    begun: bool,
    units: BTreeSet<Unit>,
    atoms: VecDeque<Atom>,
    /// Units that differed. Empty unless this is a verification.
    doubtful: Vec<Unit>,
    doubtful_parts: Vec<leftovers::Part>,
    /// Operations that would repair the rows that differed twice. 0 unless this is a verification.
    differences: usize,
    verification: Option<Verification>,
}

/// Whether a unit is among those that the verification of this number plans again.
fn is_planned(unit: &Unit, round: u64) -> bool {
    let mut hasher = DefaultHasher::new();
    unit.hash(&mut hasher);
    hasher.finish() % PLANNED_OF == round % PLANNED_OF
}

impl Full {
    /// A comparison that repairs. `gone`: rows and edges that no unit wants any more.
    pub(super) fn repair(gone: Touched, units: BTreeSet<Unit>) -> Self {
        let mut full = Self::new(Why::Repair, Stage::Closing, units, None);
        if !gone.is_empty() {
            full.atoms.push_back(Atom { units: Vec::new(), touched: gone });
        }
        full
    }

    /// A comparison that only reports differences; there should be none.
    pub(super) fn verification(mut units: BTreeSet<Unit>, verification: Verification) -> Self {
        if verification.is_known {
            units.retain(|unit| is_planned(unit, verification.round));
        }
        Self::new(Why::Verification, Stage::Units, units, Some(verification))
    }

    fn new(why: Why, stage: Stage, units: BTreeSet<Unit>, verification: Option<Verification>) -> Self {
        Self {
            why,
            stage,
            begun: false,
            units,
            atoms: VecDeque::new(),
            doubtful: Vec::new(),
            doubtful_parts: Vec::new(),
            differences: 0,
            verification,
        }
    }

    /// Whether nothing has been compared yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.why == Why::Repair && !self.begun
    }

    /// Whether everything has been compared.
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// The next portion.
    pub(super) fn next(
        &mut self,
        state: &State,
        desired: &mut Desired,
        view: &ReplicaView<'_>,
        barred: &BTreeSet<RowKey>,
        metrics: &Metrics,
    ) -> (Vec<Atom>, Changes) {
        let verifies = self.why == Why::Verification;
        self.begun = true;
        match self.stage {
            Stage::Closing => {
                let mut changes = leftovers::closing(desired, view, &state.config);
                let first = changes.split_removals(MAX_OPERATIONS, MAX_REMOVED);
                if changes.is_empty() {
                    self.stage = Stage::Units;
                }
                (Vec::new(), first)
            }
            Stage::Units if verifies => {
                self.verify_units(state, desired, view, barred, metrics);
                if self.units.is_empty() {
                    self.stage = if self.is_known() { Stage::Again } else { Stage::Leftovers(0) };
                }
                (Vec::new(), Changes::default())
            }
            Stage::Units => {
                while self.atoms.len() < COMPARED_AT_ONCE
                    && let Some(unit) = self.units.pop_first()
                {
                    self.atoms.extend(atoms::of_unit(&unit, desired));
                }
                let found = look(&mut self.atoms, desired, view, barred);
                if self.units.is_empty() && self.atoms.is_empty() {
                    self.stage = Stage::Leftovers(0);
                }
                found
            }
            Stage::Leftovers(at) => {
                let Some(part) = leftovers::Part::ALL.get(at).copied() else {
                    self.stage = if verifies { Stage::Again } else { Stage::Over };
                    return Default::default();
                };
                let mut changes =
                    leftovers::remove(desired, view, &state.config, &state.kept_gateways(), part);
                if verifies {
                    if !changes.is_empty() {
                        self.doubtful_parts.push(part);
                    }
                    self.stage = Stage::Leftovers(at + 1);
                    return Default::default();
                }
                let first = changes.split_removals(MAX_OPERATIONS, MAX_REMOVED);
                if changes.is_empty() {
                    self.stage = Stage::Leftovers(at + 1);
                }
                (Vec::new(), first)
            }
            Stage::Again => {
                let found = self.look_again(state, desired, view, barred);
                if self.atoms.is_empty() && self.doubtful.is_empty() && self.doubtful_parts.is_empty() {
                    self.stage = Stage::Over;
                }
                found
            }
            Stage::Over => Default::default(),
        }
    }

    fn is_known(&self) -> bool {
        self.verification.as_ref().is_some_and(|verification| verification.is_known)
    }

    fn verify_units(
        &mut self,
        state: &State,
        desired: &mut Desired,
        view: &ReplicaView<'_>,
        barred: &BTreeSet<RowKey>,
        metrics: &Metrics,
    ) {
        let (mut units, mut size) = (0, 0);
        // Events wait meanwhile. One service on 500 nodes is as much as thousands of pods.
        while units < COMPARED_AT_ONCE && size < MAX_LOOKS {
            let Some(unit) = self.units.pop_first() else { return };
            units += 1;
            size += desired.size_of(&unit);
            // A plan that differs from the one made at the last event is a mistake like any other.
            let mut touched = Touched::default();
            if self.verification.as_ref().is_some_and(|v| is_planned(&unit, v.round)) {
                replan(&unit, state, desired, &mut touched, metrics);
            }
            if self.is_known() && touched.is_empty() {
                continue;
            }
            let mut atoms = atoms::of_unit(&unit, desired);
            if !touched.is_empty() {
                tracing::warn!(%unit, "plan of a unit changed without an event; comparing its rows");
                self.atoms.push_back(Atom { units: vec![unit.clone()], touched: touched.clone() });
                atoms.push_back(Atom { units: vec![unit.clone()], touched });
            }
            while !atoms.is_empty() {
                if !look(&mut atoms, desired, view, barred).1.is_empty() {
                    self.doubtful.push(unit);
                    break;
                }
            }
        }
    }

    /// Compares the units that differed a second time: a transaction may have been under way. Rows that still differ are counted and
    /// repaired.
    fn look_again(
        &mut self,
        state: &State,
        desired: &Desired,
        view: &ReplicaView<'_>,
        barred: &BTreeSet<RowKey>,
    ) -> (Vec<Atom>, Changes) {
        if let Some(part) = self.doubtful_parts.pop() {
            let mut changes = leftovers::remove(desired, view, &state.config, &state.kept_gateways(), part);
            self.count(&changes, || format!("{part:?}"));
            let first = changes.split_removals(MAX_OPERATIONS, MAX_REMOVED);
            return (Vec::new(), first);
        }
        if self.atoms.is_empty()
            && let Some(unit) = self.doubtful.pop()
        {
            self.atoms = atoms::of_unit(&unit, desired);
        }
        let (atoms, changes) = look(&mut self.atoms, desired, view, barred);
        self.count(&changes, || {
            atoms.iter().flat_map(|atom| &atom.units).map(ToString::to_string).collect::<Vec<_>>().join(", ")
        });
        (atoms, changes)
    }

    fn count(&mut self, changes: &Changes, what: impl FnOnce() -> String) {
        if !changes.is_empty() {
            self.differences += changes.len();
            tracing::error!(
                operations = changes.len(),
                what = what(),
                "northbound database drifted without an observed change; repairing"
            );
        }
    }

    /// The removal that was sent was refused: the stage that it is part of is given up.
    pub(super) fn give_up_stage(&mut self) {
        self.stage = match self.stage {
            Stage::Closing => Stage::Units,
            Stage::Leftovers(at) => Stage::Leftovers(at + 1),
            other => other,
        };
    }

    /// Reports the result. Returns the state that need not be compared again while it is unchanged: `now`, if there was no
    /// difference and `now` is what was compared.
    pub(super) fn finish(self, refused: usize, now: Compared, metrics: &Metrics) -> Option<Compared> {
        match self.why {
            Why::Repair => tracing::info!("northbound database is in sync"),
            Why::Verification => {
                metrics.verified(self.differences, refused);
                if self.is_known() {
                    metrics.verifications_unchanged.inc();
                }
            }
        }
        let is_clean = self.differences == 0 && refused == 0;
        self.verification
            .map(|verification| verification.compared)
            .filter(|before| is_clean && *before == now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_planned_again_once_in_a_round() {
        for name in 0..100 {
            let unit = Unit::Node(name.to_string());
            for first in [0, 5] {
                assert_eq!((first..first + PLANNED_OF).filter(|round| is_planned(&unit, *round)).count(), 1);
            }
        }
    }
}
