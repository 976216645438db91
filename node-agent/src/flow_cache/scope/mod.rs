//! Which cached entries a change of br-int's flows can concern. Pure: no I/O, time is passed in.
//!
//! A cached verdict changes only if the match of some update covers a state that the packet has on its old way through the tables:
//! where the old and the new way part, another flow wins, which was added and matches, or was removed and matched. So the rules
//! name necessary conditions of "the old way has a state that this match covers". A field that is not read here counts as matching.
//! The facts that the rules use are those of flows that made the old way; so removed ones stay known for a while, and added ones
//! only widen.
//!
//! A *scoped* entry: it comes in by and goes to a pod, the management port or a tunnel, but not from tunnel to tunnel, nor back to
//! its own port; its TTL is lowered at most once; its addresses are as they were, or a switch's load balancer translated exactly one of
//! them (a request to a ClusterIP, or its answer). It belongs to the addresses before and after, up to four; to the ports in and
//! out; to the MAC address that sent and the one that it is delivered to; and of a tunnel to the network identifier, and to it with each of
//! the keys. Every other entry is sensitive to every change that is not nothing.
//!
//! | rule | match | concerns | why |
//! |---|---|---|---|
//! | R0 | not IP; a protocol other than TCP and UDP; to a group; a fragment | nothing | no entry is such, and no action makes such a packet one of an entry |
//! | R1 | an address, whole | it | addresses are written by connection tracking alone: a request's destination once, where it enters its switch; an answer's source once, where it leaves. So every state has addresses of the entry |
//! | R2 | ingress or egress port of this node, with its datapath; `in_port` of an endpoint | port, and its key | registers 14 and 15 are written by what enters the bridge or a datapath, and by the look-up of the receiver; an egress port leads there or is a drop |
//! | R3 | egress port from 0x8000 on | what the flows that write it concern, and the key | a group's constant is written by them or came by a tunnel |
//! | R4 | a conjunction's clause, before the change and after it, or id | itself, or all clauses of one other dimension | it acts for a packet only if a clause of every dimension matches the packet |
//! | R5 | register 0 whole (0 to 3), in a router after it has routed | the address, and what the flows that write it as a constant concern | the next hop is a copy of the destination, or a constant |
//! | R6 | register 4 whole (4 to 7) | the same | the original destination is the packet's or its connection's, or a constant; with IPv6 a router looks its next hop up there |
//! | R7 | a MAC address that is not a router port's | it | with one router at most a frame has the MAC addresses of sender and receiver and of router ports only |
//! | R8 | ingress or egress port of a switch, neither local nor a patch port | key | it was reached from, or left by, a tunnel, whose option has the key |
//! | R9 | a datapath without local endpoints and not next to one | network identifier | the way has the first switch, one router, and the datapath of the tunnel |
//!
//! Everything else is [`Why`]. Fields of other kinds (connection state, ports of TCP and UDP, flag registers, priorities) widen a match,
//! and are ignored.
//!
//! [`lint`] checks who writes what, as R1 to R9 assume: (A1) addresses are never written but by `ct(nat)`, which routers next to
//! endpoints do not have, and switches' translations of a destination are in one table; (A2) a router lowers the TTL in one table, before it
//! chooses a port; (A3) registers 0 to 7 are 0 where a packet enters a datapath.

mod conjunction;
mod counted;
mod facts;
mod impact;
mod index;
mod ledger;
mod lint;
mod name;
mod rules;

use std::time::Instant;

pub use impact::{Impact, Rule, Scope, Why};

use crate::ovs::openflow::{FlowActions, Key, Match, Update};
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
    /// Flows that this rule answers are taken to concern nothing.
    without: Option<Rule>,
}

impl Classifier {
    /// A classifier that lacks a rule: what the rule would name is not named. For tests that show what the rule is for.
    pub fn without(rule: Rule) -> Self {
        Self { without: Some(rule), ..Self::default() }
    }

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
        let old = looks.then(|| self.ledger.facts(key).map(<[facts::Fact]>::to_vec));
        if let Some(actions) = actions {
            self.ledger.put(key, &matched, actions, now);
        }
        if let Some(old) = old {
            self.classify(key, &matched, old.as_deref());
        }
        if actions.is_none() {
            self.ledger.remove(key, now);
        }
    }

    /// `old`: what the flow was, if there was one.
    fn classify(&mut self, key: &Key<'_>, matched: &Match, old: Option<&[facts::Fact]>) {
        self.ledger.index_mut().update_near();
        let mut scopes = std::mem::take(&mut self.scratch);
        scopes.clear();
        // One that is removed is still there.
        let versions = old.into_iter().chain(self.ledger.facts(key));
        match conjunction::scopes(self.ledger.index(), key.table, matched, versions, &mut scopes) {
            Err(_) if self.without == Some(Rule::Everything) => self.pending.nothing += 1,
            Err(why) => self.everything(why),
            Ok(rule) if scopes.is_empty() || self.without == Some(rule) => self.pending.nothing += 1,
            Ok(_) => self.pending.scopes.extend(&scopes),
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
