//! Which cached entries a change of br-int's flows can concern. Pure: no I/O, time is passed in.

mod impact;

use std::time::Instant;

pub use impact::{Impact, Scope, Why};

use crate::ovs::openflow::Update;

/// Classifies updates of br-int's flow monitor. One for each connection of the monitor, which begins with all existing flows.
#[derive(Debug, Default)]
pub struct Classifier {
    pending: Impact,
}

impl Classifier {
    /// Takes one update that arrived at `now`: of the initial list, or of a change.
    pub fn take(&mut self, update: &Update<'_>, _now: Instant) {
        self.pending.updates += 1;
        self.pending.everything.get_or_insert(match update {
            Update::Paused(_) => Why::Paused,
            Update::Unknown => Why::Unreadable,
            Update::Present { .. } | Update::Removed(_) => Why::Bridge,
        });
    }

    /// What the updates since the last call concern. The initial list concerns nothing that anybody knows, so its answer is
    /// dropped.
    pub fn impact(&mut self) -> Impact {
        std::mem::take(&mut self.pending)
    }

    /// Why the flow table is not as the rules assume, as a text for status; every change then concerns everything.
    pub fn lint(&self) -> Option<&str> {
        None
    }
}
