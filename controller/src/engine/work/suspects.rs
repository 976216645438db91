//! Rows that another client may have changed, and how often each was repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::MAX_LOOKS;
use crate::metrics::Metrics;
use crate::plan::RowKey;
use crate::reconcile::ReplicaView;
use crate::reconcile::diff::compare;
use crate::reconcile::repair::RepairLimit;
use crate::reconcile::{Desired, Touched};

/// Rows to be compared, and rows whose repair was deferred.
#[derive(Debug, Default)]
pub(in crate::engine) struct Suspects {
    rows: BTreeMap<RowKey, Touched>,
    deferred: BTreeSet<RowKey>,
    repairs: RepairLimit,
}

impl Suspects {
    /// Adds a row.
    pub(in crate::engine) fn add(&mut self, key: RowKey, touched: Touched) {
        self.rows.entry(key).or_default().extend(touched);
    }

    /// Adds the rows whose repair was deferred.
    pub(in crate::engine) fn add_deferred(&mut self, desired: &Desired) {
        for key in std::mem::take(&mut self.deferred) {
            let mut touched = Touched::default();
            desired.touch(&key, &mut touched);
            self.add(key, touched);
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Drops all: everything will be compared.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Takes the rows that differ and were not repaired too often, as many as one portion of work may compare.
    pub(super) fn take(&mut self, desired: &Desired, view: &ReplicaView<'_>, metrics: &Metrics) -> Touched {
        let mut found = Touched::default();
        let mut looks = 0;
        while looks < MAX_LOOKS
            && let Some((key, suspect)) = self.rows.pop_first()
        {
            looks += suspect.len();
            // The controller's own changes differ in nothing.
            if compare(desired, view, &suspect).is_empty() {
                continue;
            }
            let (table, name) = (key.table.name(), key.key.as_str());
            if self.repairs.allow(&key, Instant::now()) {
                tracing::warn!(table, key = name, "row changed by another client; repairing");
                metrics.repairs.inc();
                found.extend(suspect);
            } else {
                tracing::error!(
                    table,
                    key = name,
                    "row keeps being changed by another client; repair deferred"
                );
                metrics.repairs_deferred.inc();
                self.deferred.insert(key);
            }
        }
        found
    }
}
