//! What changes of a bridge's flows concern, by bridge.

use std::time::Instant;

use crate::flow_cache::cause::Watched;
use crate::flow_cache::scope::{Classifier, Impact, Why};
use crate::ovs::openflow::Update;

/// The flow tables of a monitored bridge, as far as they say what a change of them concerns.
#[derive(Debug)]
pub(super) enum Tables {
    /// Of br-int.
    Integration(Box<Classifier>),
    /// Of the gateway bridge.
    Gateway(Impact),
}

impl Tables {
    pub(super) fn new(bridge: Watched) -> Self {
        match bridge {
            Watched::Integration => Self::Integration(Box::default()),
            Watched::Gateway => Self::Gateway(Impact::default()),
        }
    }

    /// Takes an update that arrived at `now`.
    pub(super) fn take(&mut self, update: &Update<'_>, now: Instant) {
        match self {
            Self::Integration(classifier) => classifier.take(update, now),
            Self::Gateway(impact) => {
                impact.updates += 1;
                impact.everything.get_or_insert(Why::Bridge);
            }
        }
    }

    /// What the updates since the last call concern.
    pub(super) fn impact(&mut self) -> Impact {
        match self {
            Self::Integration(classifier) => classifier.impact(),
            Self::Gateway(impact) => std::mem::take(impact),
        }
    }

    /// See [`Classifier::lint`].
    pub(super) fn lint(&self) -> Option<&str> {
        match self {
            Self::Integration(classifier) => classifier.lint(),
            Self::Gateway(_) => None,
        }
    }
}
