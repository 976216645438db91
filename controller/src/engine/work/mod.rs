//! The work of the engine, and how it is divided into portions: units that events made dirty, in the order of the events; rows that the
//! database refused, piece by piece; a full comparison; a verification. Events and the comparison take turns, so that neither waits for
//! the end of the other.
//!
//! Every portion is bounded by what it compares, as the replica is locked meanwhile, and by what it sends, as the server does nothing
//! else meanwhile.

mod atoms;
mod full;
mod refused;
mod suspects;

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use ovsdb_client::Transaction;

use crate::metrics::{ErrorKind, Metrics};
use crate::plan::{self, RowKey};
use crate::reconcile::diff::Differ;
use crate::reconcile::{Changes, Desired, ReplicaView, Touched};
use crate::state::State;
use crate::unit::Unit;
use atoms::Atom;
pub(super) use full::Compared;
use full::{Full, Verification, Why};
pub(super) use refused::Refusal;
use refused::Refused;
use suspects::Suspects;

/// Operations in one transaction, unless one atom alone has more. The server carries out 5,000 in some tens of milliseconds.
const MAX_OPERATIONS: usize = 5_000;
/// Bytes of one transaction on the wire, unless one atom alone has more.
const MAX_BYTES: usize = 1 << 20;
/// Rows and edges looked at while the replica is locked: some milliseconds.
const MAX_LOOKS: usize = 4_000;
/// Units of events that are planned together. A pod is two to four operations.
const UNITS_AT_ONCE: usize = 1_024;
/// Rows and edges after which no more units are planned: a service is hundreds of rows where there are hundreds of nodes, and
/// what is planned and not sent takes memory.
const PLANNED_AT_ONCE: usize = 2 * MAX_OPERATIONS;

/// The units that one event made dirty.
#[derive(Debug)]
struct Group {
    dirty: BTreeSet<Unit>,
    /// Pods whose addresses are free after it.
    release: Vec<String>,
    seen: Instant,
}

/// The source of the atoms under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Event,
    Refused,
    Full(Why),
}

/// The portion that is being sent.
#[derive(Debug)]
struct Current {
    source: Source,
    /// The full comparison that it is part of; another one may have been requested meanwhile.
    generation: u64,
    atoms: Vec<Atom>,
    /// True for the last portion of the events that were planned together.
    last: bool,
}

/// Result of a portion.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Pods whose addresses are free now.
    pub(super) released: Vec<String>,
    /// A comparison has ended, and held addresses of ports that are not there any more are free.
    pub(super) look_at_held: bool,
}

/// The work to be done.
#[derive(Debug, Default)]
pub(super) struct Work {
    groups: VecDeque<Group>,
    /// Atoms of the events planned together last, that have not been sent.
    pending: VecDeque<Atom>,
    /// The first group is the rest of those events.
    is_more: bool,
    /// Pods to report when all of it is in the database.
    release: Vec<String>,
    pods_seen: Vec<Instant>,
    suspects: Suspects,
    refused: Refused,
    full: Option<Full>,
    generation: u64,
    verifications: u64,
    /// State that the last verification compared, if it found no difference.
    clean: Option<Compared>,
    current: Option<Current>,
    /// Addresses of pods that are free once the database shows no port of them.
    held: Vec<String>,
    /// The full comparison has the next turn.
    full_is_next: bool,
}

impl Work {
    /// Adds the units that one event made dirty.
    pub(super) fn add(&mut self, dirty: BTreeSet<Unit>, release: Vec<String>, seen: Instant) {
        if !dirty.is_empty() || !release.is_empty() {
            self.groups.push_back(Group { dirty, release, seen });
        }
    }

    /// Starts a comparison of everything. Events that came before are part of it. All units are planned here, before
    /// anything is compared: what is compared first may depend on what is planned last.
    pub(super) fn start_full(&mut self, state: &State, desired: &mut Desired, metrics: &Metrics) {
        let mut units = state.units();
        units.extend(desired.units().cloned());
        self.is_more = false;
        for group in self.groups.drain(..) {
            units.extend(group.dirty);
            self.held.extend(group.release);
        }
        self.held.append(&mut self.release);
        self.pods_seen.clear();
        self.refused.clear();
        self.suspects.clear();
        let mut gone = Touched::default();
        for atom in self.pending.drain(..) {
            gone.extend(atom.touched);
        }
        for unit in &units {
            replan(unit, state, desired, &mut gone, metrics);
            // Rows and edges that are still wanted are compared with their unit.
            gone.rows.retain(|key| desired.row(key).is_none());
            gone.edges.retain(|edge| !desired.has_edge(&edge.owner, edge.column, &edge.member));
        }
        self.generation += 1;
        self.clean = None;
        self.full = Some(Full::repair(gone, units));
    }

    /// Starts a comparison that changes nothing unless something differs; not while there is other work. The state that the last one
    /// compared is not compared again while neither side has changed.
    pub(super) fn start_verification(&mut self, state: &State, desired: &Desired, compared: Compared) {
        if self.full.is_some() {
            return;
        }
        let is_known = self.clean.take().is_some_and(|clean| clean == compared);
        let mut units = state.units();
        units.extend(desired.units().cloned());
        self.generation += 1;
        let verification = Verification { round: self.verifications, compared, is_known };
        self.full = Some(Full::verification(units, verification));
        self.verifications += 1;
    }

    /// Whether a comparison that repairs the database is under way.
    pub(super) fn is_full(&self) -> bool {
        self.full.as_ref().is_some_and(|full| full.why != Why::Verification)
    }

    /// Whether a comparison has been requested and none of it is done.
    pub(super) fn is_fresh(&self) -> bool {
        self.full.as_ref().is_some_and(Full::is_fresh)
    }

    /// Whether there is work to do or under way, apart from a verification.
    pub(super) fn is_busy(&self) -> bool {
        let verifies = |source: Source| source == Source::Full(Why::Verification);
        self.is_full()
            || !self.groups.is_empty()
            || !self.pending.is_empty()
            || !self.suspects.is_empty()
            || self.refused.has_pieces()
            || self.current.as_ref().is_some_and(|current| !verifies(current.source))
    }

    /// Whether there is something to look at.
    pub(super) fn has_next(&self) -> bool {
        self.full.is_some()
            || !self.groups.is_empty()
            || !self.pending.is_empty()
            || !self.suspects.is_empty()
            || self.refused.has_pieces()
    }

    /// Whether nothing is left and nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_next() && self.current.is_none()
    }

    /// Rows that another client may have changed.
    pub(super) fn suspects(&mut self) -> &mut Suspects {
        &mut self.suspects
    }

    /// The time at which refused rows are tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.refused.retry_at()
    }

    /// Tries refused rows again that have waited long enough.
    pub(super) fn retry(&mut self, now: Instant, desired: &Desired) {
        self.refused.retry(now, desired);
    }

    /// Plans the units that events made dirty, as many as belong in one portion. Does not look at the database.
    pub(super) fn plan(&mut self, state: &State, desired: &mut Desired, metrics: &Metrics) {
        if !self.pending.is_empty() || self.groups.is_empty() {
            return;
        }
        let mut units = BTreeSet::new();
        while let Some(group) = self.groups.front() {
            // Units that several events have made dirty are planned once: a node that joins makes the same services dirty each time.
            let more = group.dirty.difference(&units).count();
            if !units.is_empty() && units.len() + more > UNITS_AT_ONCE {
                break;
            }
            let Some(group) = self.groups.pop_front() else { break };
            let is_rest = std::mem::take(&mut self.is_more);
            if !is_rest && group.dirty.iter().any(|unit| matches!(unit, Unit::Pod(_))) {
                self.pods_seen.push(group.seen);
            }
            units.extend(group.dirty);
            self.release.extend(group.release);
        }
        let mut together = Atom::default();
        let mut divisible = VecDeque::new();
        let (mut planned, mut rest) = (0, units.iter());
        while planned < PLANNED_AT_ONCE
            && let Some(unit) = rest.next()
        {
            let mut touched = Touched::default();
            replan(unit, state, desired, &mut touched, metrics);
            planned += touched.len();
            if unit.is_divisible() && touched.len() > atoms::LARGE {
                divisible.extend(atoms::by_row(unit, touched));
            } else {
                together.units.push(unit.clone());
                together.touched.extend(touched);
            }
        }
        let dirty: BTreeSet<Unit> = rest.cloned().collect();
        self.is_more = !dirty.is_empty();
        if self.is_more {
            self.groups.push_front(Group { dirty, release: Vec::new(), seen: Instant::now() });
        }
        self.refused.planned(&units, desired);
        self.pending.push_back(together);
        self.pending.append(&mut divisible);
    }

    /// The next transaction; `None` if the next portion needs none. Either way that portion is current until [`Work::done`].
    pub(super) fn next(
        &mut self,
        state: &State,
        desired: &mut Desired,
        view: &ReplicaView<'_>,
        metrics: &Metrics,
    ) -> Option<Transaction> {
        // Rows that pending events are about to change differ, though no other client changed them.
        if self.pending.is_empty() && !self.suspects.is_empty() {
            let touched = self.suspects.take(desired, view, metrics);
            self.pending.push_back(Atom { units: Vec::new(), touched });
        }
        let turn = self.full_is_next && self.is_full();
        let source = if !self.pending.is_empty() && !turn {
            Source::Event
        } else if self.refused.has_pieces() && !turn {
            Source::Refused
        } else {
            Source::Full(self.full.as_ref()?.why)
        };
        self.full_is_next = source == Source::Event;
        let (atoms, changes) = match source {
            Source::Event => look(&mut self.pending, desired, view, self.refused.barred()),
            Source::Refused => {
                let (atoms, barred) = self.refused.next_piece();
                let mut differ = Differ::new(desired, view, &barred);
                atoms.iter().for_each(|atom| differ.look_at(&atom.touched));
                let changes = differ.into_changes();
                (atoms, changes)
            }
            Source::Full(_) => {
                let full = self.full.as_mut()?;
                full.next(state, desired, view, self.refused.barred(), metrics)
            }
        };
        let last = source == Source::Event && self.pending.is_empty();
        self.current = Some(Current { source, generation: self.generation, atoms, last });
        if changes.is_empty() {
            return None;
        }
        let (operations, bytes) = (changes.len(), changes.bytes());
        let mut transaction = Transaction::new();
        tracing::debug!(?source, operations, bytes, "transaction");
        metrics.transaction_size(operations, bytes);
        changes.write(&mut transaction);
        Some(transaction)
    }

    /// Whether the current portion is part of a full comparison. Other work may be done between its portions.
    pub(super) fn is_in_full(&self) -> bool {
        self.current.as_ref().is_some_and(|current| matches!(current.source, Source::Full(_)))
    }

    /// The current portion is in the database.
    pub(super) fn done(
        &mut self,
        desired: &Desired,
        now: impl FnOnce() -> Compared,
        metrics: &Metrics,
    ) -> Done {
        let Some(current) = self.current.take() else { return Done::default() };
        let mut done = Done::default();
        match current.source {
            Source::Event if current.last && !self.is_more => {
                for seen in self.pods_seen.drain(..) {
                    Metrics::observe(&metrics.pod_seconds, seen.elapsed());
                }
                done.released = std::mem::take(&mut self.release);
            }
            Source::Event => {}
            Source::Refused => {
                self.refused.succeeded(&current.atoms, desired);
                done.look_at_held = !self.refused.has_pieces();
            }
            Source::Full(_) => {
                if current.generation == self.generation && self.full.as_ref().is_some_and(Full::is_over) {
                    if let Some(full) = self.full.take() {
                        self.clean = full.finish(self.refused.len(), now(), metrics);
                    }
                    done.look_at_held = true;
                }
            }
        }
        done
    }

    /// The database refused the current portion: it is sent in halves, down to the part that is refused alone.
    pub(super) fn was_refused(&mut self, desired: &Desired, now: Instant) -> Refusal {
        let Some(current) = self.current.take() else { return Refusal::Alone(None) };
        // An old port may still be there when the last atom is in the database, whichever of the events' atoms was refused.
        if current.source == Source::Event {
            self.held.append(&mut self.release);
            self.pods_seen.clear();
        }
        if current.atoms.is_empty()
            && let Some(full) = &mut self.full
        {
            full.give_up_stage();
        }
        self.refused.add(current.atoms, desired, now)
    }

    /// The current portion was not sent, or it is not known whether it is in the database. A full comparison must follow.
    pub(super) fn abandon(&mut self) {
        self.current = None;
        self.held.append(&mut self.release);
        self.pods_seen.clear();
    }

    /// Frees held addresses. `there` returns whether the database has a port of the pod with that UID.
    pub(super) fn free_held(&mut self, there: impl Fn(&str) -> bool) -> Vec<String> {
        let (kept, free) = std::mem::take(&mut self.held).into_iter().partition(|uid| there(uid));
        self.held = kept;
        free
    }

    /// Whether addresses wait for their ports to go.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Plans a unit and reports rows that another unit wants with other columns.
fn replan(unit: &Unit, state: &State, desired: &mut Desired, touched: &mut Touched, metrics: &Metrics) {
    let items = plan::plan(&state.index, &state.config, unit);
    for key in desired.set(unit, items, touched) {
        metrics.error(ErrorKind::Conflict);
        tracing::error!(%unit, table = key.table.name(), key = key.key.as_str(), "row conflict: another object wants this row with other columns");
    }
}

/// Compares atoms until a portion is full. Compared atoms are taken out.
fn look(
    queue: &mut VecDeque<Atom>,
    desired: &Desired,
    view: &ReplicaView<'_>,
    barred: &BTreeSet<RowKey>,
) -> (Vec<Atom>, Changes) {
    let mut differ = Differ::new(desired, view, barred);
    let mut looks = 0;
    let mut atoms = Vec::new();
    while let Some(atom) = queue.front() {
        // An atom is not divided; one that would make the portion too large waits, unless it is the first.
        looks += atom.touched.len();
        let full = differ.operations() >= MAX_OPERATIONS || differ.bytes() >= MAX_BYTES || looks > MAX_LOOKS;
        if full && !atoms.is_empty() {
            break;
        }
        let Some(atom) = queue.pop_front() else { break };
        differ.look_at(&atom.touched);
        atoms.push(atom);
    }
    (atoms, differ.into_changes())
}
