//! The facts of br-int's flows, kept current by the updates of the flow monitor.
//!
//! Facts of removed flows stay known for [`KEPT`]: the entries that a change concerns were learned before it, maybe from a datapath
//! flow of OVS that was older still, and ovn-controller removes flows in any order.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use hashbrown::{DefaultHashBuilder, HashMap, HashSet};

use super::facts::{self, Fact};
use super::index::Index;
use super::name::Name;
use crate::ovs::openflow::{FlowActions, Key, Match};

/// How long facts of removed flows stay known: much longer than OVS's revalidators take to bring datapath flows in line.
const KEPT: Duration = Duration::from_secs(60);

/// Facts of flows.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    flows: HashMap<Name, Box<[Fact]>>,
    /// Flows without facts, which are most: hashes of their keys.
    plain: HashSet<u64>,
    hasher: DefaultHashBuilder,
    gone: VecDeque<(Instant, Name, Box<[Fact]>)>,
    scratch: Vec<Fact>,
    index: Index,
}

impl Ledger {
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Facts of a flow as it is now; `None`: there is no such flow. The flow monitor does not tell: a flow that replaces another of the same
    /// match by `OFPFC_ADD` is reported as added (OVS, `replace_rule_finish` in ofproto/ofproto.c).
    pub(super) fn facts(&self, key: &Key<'_>) -> Option<&[Fact]> {
        let plain = || self.plain.contains(&self.hash(key)).then_some(&[][..]);
        self.flows.get(key).map(|facts| &**facts).or_else(plain)
    }

    fn hash(&self, key: &Key<'_>) -> u64 {
        self.hasher.hash_one((key.table, key.priority, key.fields))
    }

    /// A flow was added or modified.
    pub(super) fn put(&mut self, key: &Key<'_>, matched: &Match, actions: &FlowActions, now: Instant) {
        let mut facts = std::mem::take(&mut self.scratch);
        facts.clear();
        facts::read(key.table, matched, actions, &mut facts);
        if self.facts(key) != Some(facts.as_slice()) {
            self.remove(key, now);
            if facts.is_empty() {
                self.plain.insert(self.hash(key));
            } else {
                let name = Name::from(key);
                facts.iter().for_each(|fact| self.index.add(&name, fact));
                self.flows.insert(name, facts.as_slice().into());
            }
        }
        self.scratch = facts;
    }

    /// A flow was removed, or is to be replaced.
    pub(super) fn remove(&mut self, key: &Key<'_>, now: Instant) {
        if let Some((name, facts)) = self.flows.remove_entry(key) {
            self.gone.push_back((now + KEPT, name, facts));
        } else {
            self.plain.remove(&self.hash(key));
        }
    }

    /// Forgets what was removed long ago.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((_, name, facts)) = self.gone.pop_front_if(|(end, ..)| *end <= now) {
            facts.iter().for_each(|fact| self.index.remove(&name, fact));
        }
    }
}
