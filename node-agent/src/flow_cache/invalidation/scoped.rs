//! Part of the state machine: scopes in which something changes. Each has a debounce window of its own. No I/O; time comes from the
//! caller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Round, Times};

/// What a wait for OVS's revalidators is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Everything.
    pub everything: bool,
    /// Buckets of scopes.
    pub buckets: BTreeSet<u32>,
}

impl Concerned {
    /// True when it concerns nothing.
    pub fn is_empty(&self) -> bool {
        !self.everything && self.buckets.is_empty()
    }

    /// Adds what `other` concerns.
    pub fn add(&mut self, other: Self) {
        self.everything |= other.everything;
        self.buckets.extend(other.buckets);
    }
}

#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
}

impl Burst {
    fn end(&self, times: Times) -> Instant {
        (self.last + times.quiet).min(self.first + times.longest)
    }
}

/// Scopes with a burst of changes: nothing is learned in them until it ends.
#[derive(Debug, Default)]
pub(super) struct Scoped(BTreeMap<u32, Burst>);

impl Scoped {
    /// Processes a change; returns the buckets that were not in a burst.
    pub(super) fn change(&mut self, now: Instant, buckets: &[u32]) -> Vec<(u32, bool)> {
        let mut begun = Vec::new();
        for bucket in buckets {
            self.0.entry(*bucket).and_modify(|burst| burst.last = now).or_insert_with(|| {
                begun.push((*bucket, true));
                Burst { first: now, last: now }
            });
        }
        begun
    }

    /// Takes out the scopes whose burst is over, each with whether OVS has to be waited for again: it had several changes.
    pub(super) fn take_ended(&mut self, now: Instant, times: Times) -> Vec<(u32, bool)> {
        let ended = self.0.iter().filter(|(_, burst)| now >= burst.end(times));
        let ended: Vec<_> = ended.map(|(bucket, burst)| (*bucket, burst.last > burst.first)).collect();
        for (bucket, _) in &ended {
            self.0.remove(bucket);
        }
        ended
    }

    /// Buckets to change again as OVS has revalidated its datapath flows. The end of a burst does so anyway; but the second round is
    /// the last word on the changes before it.
    pub(super) fn revalidated(&self, round: Round, buckets: &BTreeSet<u32>) -> Vec<(u32, bool)> {
        let all = buckets.iter().map(|bucket| (*bucket, self.0.contains_key(bucket)));
        all.filter(|(_, closed)| round == Round::Second || !closed).collect()
    }

    /// When the next burst ends.
    pub(super) fn due(&self, times: Times) -> Option<Instant> {
        self.0.values().map(|burst| burst.end(times)).min()
    }

    /// Whether nothing is learned in some scope.
    pub(super) fn is_closing(&self) -> bool {
        !self.0.is_empty()
    }
}
