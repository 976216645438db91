//! Which cached entries a change of br-int's flows can concern. Pure: no I/O, time is passed in.

mod conjunction;
mod counted;
mod facts;
mod impact;
mod index;
mod ledger;
mod lint;
mod rules;

use std::time::Instant;

pub use impact::{Impact, Scope, Why};

use crate::ovs::openflow::{FlowActions, Key, Update};
use ledger::Ledger;

/// Updates of one burst that are worth looking at. A restart of ovn-controller has thousands.
const MANY_UPDATES: usize = 1_000;
/// Scopes of one burst that are worth naming.
const MANY_SCOPES: usize = 512;

/// Classifies updates of br-int's flow monitor. One for each connection of the monitor, which begins with all existing flows.
#[derive(Debug, Default)]
pub struct Classifier {
    ledger: Ledger,
    pending: Impact,
    scratch: Vec<Scope>,
    /// An update could not be read, so the ledger may lack facts.
    unreadable: bool,
    lint: Option<String>,
}

impl Classifier {
    /// Takes one update that arrived at `now`: of the initial list, or of a change.
    pub fn take(&mut self, update: &Update<'_>, now: Instant) {
        self.ledger.expire(now);
        self.pending.updates += 1;
        if self.pending.updates > MANY_UPDATES {
            self.everything(Why::ManyUpdates);
        }
        match update {
            Update::Paused(_) => self.everything(Why::Paused),
            Update::Unknown => self.unreadable = true,
            Update::Present { key, actions } => self.flow(key, Some(actions), now),
            Update::Removed(key) => self.flow(key, None, now),
        }
        if self.unreadable {
            self.everything(Why::Unreadable);
        }
    }

    fn everything(&mut self, why: Why) {
        self.pending.everything.get_or_insert(why);
    }

    fn flow(&mut self, key: &Key<'_>, actions: Option<&FlowActions>, now: Instant) {
        let matched = key.matched();
        self.unreadable |= !matched.complete;
        let looks = self.pending.everything.is_none();
        // A modified flow concerns what it was and what it is. Its match is the same.
        let old = if looks { Some(self.ledger.facts(key).to_vec()) } else { None };
        if let Some(actions) = actions {
            self.ledger.put(key, &matched, actions, now);
        }
        if let Some(old) = old {
            self.classify(key, &matched, &old);
        }
        if actions.is_none() {
            self.ledger.remove(key, now);
        }
    }

    fn classify(&mut self, key: &Key<'_>, matched: &crate::ovs::openflow::Match, old: &[facts::Fact]) {
        self.ledger.index_mut().update_near();
        let mut scopes = std::mem::take(&mut self.scratch);
        scopes.clear();
        let all = old.iter().chain(self.ledger.facts(key));
        match conjunction::scopes(self.ledger.index(), key.table, matched, all, &mut scopes) {
            Err(why) => self.everything(why),
            Ok(()) if scopes.is_empty() => self.pending.nothing += 1,
            Ok(()) => self.pending.scopes.extend(&scopes),
        }
        if self.pending.scopes.len() > MANY_SCOPES {
            self.everything(Why::ManyScopes);
        }
        self.scratch = scopes;
    }

    /// What the updates since the last call concern. The initial list concerns nothing that anybody knows, so its answer is
    /// dropped.
    pub fn impact(&mut self) -> Impact {
        let index = self.ledger.index_mut();
        if std::mem::take(&mut index.lint_stale) {
            index.update_near();
            self.lint = lint::check(index);
        }
        if self.lint.is_some() && self.pending.updates > 0 {
            self.everything(Why::Lint);
        }
        std::mem::take(&mut self.pending)
    }

    /// Why the flow table is not as the rules assume, as of the last [`Self::impact`]; every change then concerns everything.
    pub fn lint(&self) -> Option<&str> {
        self.lint.as_deref()
    }
}

#[cfg(test)]
mod tests;
