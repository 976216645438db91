//! What is to be done: dirty units by event, a full comparison, changes by others, in this order of urgency: a full
//! comparison first, then events in the order they came, as many as one transaction shall hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ovsdb_client::Transaction;

use crate::metrics::Metrics;
use crate::plan::{self, RowKey, Unit};
use crate::reconcile::diff::{Actual, compare, touch_row};
use crate::reconcile::ownership;
use crate::reconcile::repair::RepairLimit;
use crate::reconcile::{Changes, ReplicaView, Touched, Wanted};
use crate::state::State;

/// Units in one transaction, unless one event alone has more. A pod is two to four operations, so this is about 2,000.
const UNITS_AT_ONCE: usize = 512;

/// What one event made dirty.
#[derive(Debug)]
struct Group {
    dirty: BTreeSet<Unit>,
    /// Pods whose addresses are free after it.
    release: Vec<String>,
    seen: Instant,
}

/// What the transaction under way is about.
#[derive(Debug, Default)]
struct Current {
    units: Vec<Unit>,
    release: Vec<String>,
    pods_seen: Vec<Instant>,
    sweep: bool,
}

/// The work to be done.
#[derive(Debug, Default)]
pub(super) struct Work {
    groups: VecDeque<Group>,
    /// Units left of a full comparison; `Some` until the sweep after it is done.
    full: Option<BTreeSet<Unit>>,
    /// Units of a refused transaction, to be sent one by one.
    alone: VecDeque<Unit>,
    /// Rows that somebody else may have changed.
    suspects: BTreeMap<RowKey, Touched>,
    deferred: BTreeSet<RowKey>,
    current: Current,
    /// Addresses that are free after the next complete comparison.
    held: Vec<String>,
    /// Whether something was refused since the full comparison began.
    refused: bool,
}

impl Work {
    /// Adds what one event made dirty.
    pub(super) fn add(&mut self, dirty: BTreeSet<Unit>, release: Vec<String>, seen: Instant) {
        if !dirty.is_empty() || !release.is_empty() {
            self.groups.push_back(Group { dirty, release, seen });
        }
    }

    /// Starts a full comparison. Events that came before are part of it.
    pub(super) fn start_full(&mut self, mut units: BTreeSet<Unit>) {
        for group in self.groups.drain(..) {
            units.extend(group.dirty);
            self.held.extend(group.release);
        }
        self.alone.clear();
        self.refused = false;
        self.full = Some(units);
    }

    /// Whether a full comparison is going on.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Notes a row that somebody else may have changed.
    pub(super) fn suspect(&mut self, key: RowKey, touched: Touched) {
        let entry = self.suspects.entry(key).or_default();
        entry.rows.extend(touched.rows);
        entry.edges.extend(touched.edges);
    }

    /// Looks again at rows whose repair was put off.
    pub(super) fn suspect_deferred(&mut self, wanted: &Wanted) {
        for key in std::mem::take(&mut self.deferred) {
            let mut touched = Touched::default();
            touch_row(wanted, &key, &mut touched);
            self.suspect(key, touched);
        }
    }

    /// Whether there is something to look at.
    pub(super) fn has_next(&self) -> bool {
        self.full.is_some() || !self.groups.is_empty() || !self.alone.is_empty() || !self.suspects.is_empty()
    }

    /// Whether nothing is left and nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_next() && self.current.units.is_empty() && !self.current.sweep
    }

    /// The next transaction; `None` when what was next needs none. Either way it is current until [`Work::done`].
    pub(super) fn next(
        &mut self,
        state: &State,
        wanted: &mut Wanted,
        view: &ReplicaView<'_>,
        repairs: &mut RepairLimit,
        metrics: &Metrics,
    ) -> Option<Transaction> {
        let all = self.choose();
        let changes = if self.current.sweep {
            ownership::sweep(wanted, view, &state.config)
        } else {
            let mut touched = Touched::default();
            for unit in &self.current.units {
                let items = plan::plan(&state.index, &state.config, unit);
                wanted.set(unit, items, all, &mut touched);
            }
            self.take_suspects(wanted, view, &mut touched, repairs, metrics);
            compare(wanted, view, &touched)
        };
        self.transaction(changes)
    }

    fn transaction(&self, changes: Changes) -> Option<Transaction> {
        if changes.is_empty() {
            return None;
        }
        let mut transaction = Transaction::new();
        tracing::debug!(units = self.current.units.len(), operations = changes.len(), "transaction");
        changes.write(&mut transaction);
        Some(transaction)
    }

    /// Chooses what is current; true when unchanged rows are to be compared too.
    fn choose(&mut self) -> bool {
        self.current = Current::default();
        if let Some(unit) = self.alone.pop_front() {
            self.current.units.push(unit);
            return true;
        }
        if let Some(full) = &mut self.full {
            self.current.sweep = full.is_empty();
            while self.current.units.len() < UNITS_AT_ONCE
                && let Some(unit) = full.pop_first()
            {
                self.current.units.push(unit);
            }
            return true;
        }
        let mut units = BTreeSet::new();
        while let Some(group) = self.groups.front() {
            if !units.is_empty() && units.len() + group.dirty.len() > UNITS_AT_ONCE {
                break;
            }
            let Some(group) = self.groups.pop_front() else { break };
            if group.dirty.iter().any(|unit| matches!(unit, Unit::Pod(_))) {
                self.current.pods_seen.push(group.seen);
            }
            units.extend(group.dirty);
            self.current.release.extend(group.release);
        }
        self.current.units = units.into_iter().collect();
        false
    }

    /// Rows that others changed, as far as they differ and have not been put right too often.
    fn take_suspects(
        &mut self,
        wanted: &Wanted,
        view: &dyn Actual,
        touched: &mut Touched,
        repairs: &mut RepairLimit,
        metrics: &Metrics,
    ) {
        for (key, suspect) in std::mem::take(&mut self.suspects) {
            // What a unit of this round touches anyway is no repair.
            if touched.rows.contains(&key) || compare(wanted, view, &suspect).is_empty() {
                continue;
            }
            if repairs.allow(&key, Instant::now()) {
                tracing::warn!(
                    table = key.table.name(),
                    key = key.key,
                    "somebody else changed a row; putting it right"
                );
                metrics.repairs.inc();
                touched.rows.extend(suspect.rows);
                touched.edges.extend(suspect.edges);
            } else {
                tracing::error!(
                    table = key.table.name(),
                    key = key.key,
                    "somebody else keeps changing a row; leaving it for a while"
                );
                metrics.repairs_deferred.inc();
                self.deferred.insert(key);
            }
        }
    }

    /// What was current is in the database. Answers with the pods whose addresses are free now.
    pub(super) fn done(&mut self, metrics: &Metrics) -> Vec<String> {
        let current = std::mem::take(&mut self.current);
        for seen in current.pods_seen {
            Metrics::observe(&metrics.pod_seconds, seen.elapsed());
        }
        if !current.sweep {
            return current.release;
        }
        self.full = None;
        tracing::info!("the database holds what it should");
        // With something refused, an old port may still be there.
        if self.refused { Vec::new() } else { std::mem::take(&mut self.held) }
    }

    /// The database refused what was current: its units are sent alone, or, if there was one only, later. Answers with
    /// what was given up for now.
    pub(super) fn refused(&mut self) -> Option<String> {
        let current = std::mem::take(&mut self.current);
        self.held.extend(current.release);
        self.refused = true;
        if current.sweep {
            self.full = None;
            return Some("removal of leftover rows".to_owned());
        }
        match &current.units[..] {
            [] => Some("repair".to_owned()),
            [unit] => Some(format!("{unit:?}")),
            _ => {
                self.alone.extend(current.units);
                None
            }
        }
    }

    /// Whether what was current got into the database is not known, or it was not sent. A full comparison must follow.
    pub(super) fn abandon(&mut self) {
        let current = std::mem::take(&mut self.current);
        self.held.extend(current.release);
    }
}
