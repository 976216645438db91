//! Which annotation is written next: one entry per object, in which the newest value wins; namespaces in turn, so that one
//! whose objects cannot be written delays no other; a separate wait for each object that failed. Has no client and no clock: the
//! time is passed in.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::state::Patch;

/// First wait after a failure; doubled up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(50);
/// Longest wait after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// After this many failures the failure is reported to the object's owner.
const TELL_FAILURES: u32 = 5;
/// After this time as well, however few the failures.
const TELL_AFTER: Duration = Duration::from_secs(10);
/// Reported again after this time: events expire.
const TELL_AGAIN: Duration = Duration::from_secs(600);

/// How many writes may be under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// In all.
    pub(super) total: usize,
    /// In one namespace; objects without a namespace count as one.
    pub(super) namespace: usize,
    /// In a namespace whose last write failed: writes that hang there must not occupy every place.
    pub(super) failing: usize,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Written,
    /// There is no object to write to any more.
    Gone,
    /// To be tried again. `tell`: the object's owner may be able to help.
    Failed {
        tell: bool,
    },
}

/// What follows from the end of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// The object is off the queue, after this time on it.
    Off(Duration),
    /// The annotation is written again, now or later.
    Again,
    /// The annotation is written again, and has failed so often that the owner of the object should be informed.
    Stuck { failures: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    Writing,
    /// Waits until this time, after a failure.
    Resting(Instant),
}

#[derive(Debug)]
struct Entry {
    patch: Patch,
    stage: Stage,
    /// Whether a newer value came during the write.
    newer: bool,
    /// Whether the object was deleted during the write.
    forgotten: bool,
    failures: u32,
    since: Instant,
    told: Option<Instant>,
}

/// The objects of one namespace.
#[derive(Debug, Default)]
struct Lane {
    /// Objects that may be written now. May name some that are gone.
    ready: VecDeque<String>,
    /// Whether the namespace is in the order of turns.
    in_turn: bool,
    writing: usize,
    /// All objects of the namespace that are on the queue.
    objects: usize,
    failing: bool,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    limits: Limits,
    /// By UID.
    entries: HashMap<String, Entry>,
    /// By namespace; the empty name for objects without one.
    lanes: BTreeMap<String, Lane>,
    turns: VecDeque<String>,
    resting: BTreeSet<(Instant, String)>,
    writing: usize,
}

fn namespace(patch: &Patch) -> &str {
    patch.object.namespace.as_deref().unwrap_or_default()
}

impl Queue {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            lanes: BTreeMap::new(),
            turns: VecDeque::new(),
            resting: BTreeSet::new(),
            writing: 0,
        }
    }

    /// Number of objects that wait or are being written.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a patch, or replaces an older one of the same object.
    pub(super) fn push(&mut self, patch: Patch, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&patch.object.uid) {
            entry.newer = entry.stage == Stage::Writing;
            entry.patch.annotations.extend(patch.annotations);
            return;
        }
        let uid = patch.object.uid.clone();
        let space = namespace(&patch).to_owned();
        let entry = Entry {
            patch,
            stage: Stage::Ready,
            newer: false,
            forgotten: false,
            failures: 0,
            since: now,
            told: None,
        };
        self.entries.insert(uid.clone(), entry);
        self.lanes.entry(space.clone()).or_default().objects += 1;
        self.ready(&space, uid);
    }

    /// The next patch to write now, in the turn of the namespaces; none while as many are under way as allowed.
    pub(super) fn next(&mut self, now: Instant) -> Option<Patch> {
        self.rested(now);
        if self.writing >= self.limits.total {
            return None;
        }
        for _ in 0..self.turns.len() {
            let space = self.turns.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&space) else { continue };
            let limit = if lane.failing { self.limits.failing } else { self.limits.namespace };
            if lane.writing >= limit {
                self.turns.push_back(space);
                continue;
            }
            let mut found = None;
            while found.is_none()
                && let Some(uid) = lane.ready.pop_front()
            {
                found = self.entries.get_mut(&uid).filter(|entry| entry.stage == Stage::Ready);
            }
            if found.is_some() {
                lane.writing += 1;
                self.writing += 1;
            }
            lane.in_turn = !lane.ready.is_empty();
            if lane.in_turn {
                self.turns.push_back(space);
            }
            if let Some(entry) = found {
                entry.stage = Stage::Writing;
                entry.newer = false;
                return Some(entry.patch.clone());
            }
        }
        None
    }

    /// Handles the end of a write of the object with this UID.
    pub(super) fn ended(&mut self, uid: &str, ended: Ended, now: Instant) -> After {
        let Some(entry) = self.entries.get_mut(uid) else { return After::Off(Duration::ZERO) };
        let space = namespace(&entry.patch).to_owned();
        let age = now.saturating_duration_since(entry.since);
        self.writing = self.writing.saturating_sub(1);
        let lane = self.lanes.entry(space.clone()).or_default();
        lane.writing = lane.writing.saturating_sub(1);
        match ended {
            Ended::Written => lane.failing = false,
            Ended::Failed { .. } => lane.failing = true,
            Ended::Gone => {}
        }
        if entry.forgotten || ended == Ended::Gone || (ended == Ended::Written && !entry.newer) {
            self.remove(uid);
            return After::Off(age);
        }
        let Ended::Failed { tell } = ended else {
            entry.failures = 0;
            entry.since = now;
            entry.told = None;
            entry.stage = Stage::Ready;
            self.ready(&space, uid.to_owned());
            return After::Again;
        };
        let doubled = 1_u32.checked_shl(entry.failures.min(16)).unwrap_or(u32::MAX);
        let until = now + MIN_BACKOFF.saturating_mul(doubled).min(MAX_BACKOFF);
        entry.failures += 1;
        entry.stage = Stage::Resting(until);
        self.resting.insert((until, uid.to_owned()));
        let stuck = entry.failures >= TELL_FAILURES || age >= TELL_AFTER;
        let due = entry.told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_AGAIN);
        if tell && stuck && due {
            entry.told = Some(now);
            return After::Stuck { failures: entry.failures };
        }
        After::Again
    }

    /// The object is gone: nothing more is written to it.
    pub(super) fn forget(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        if entry.stage == Stage::Writing {
            entry.forgotten = true;
        } else {
            self.remove(uid);
        }
    }

    /// When an object that failed is to be tried again.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| *until)
    }

    fn ready(&mut self, space: &str, uid: String) {
        let lane = self.lanes.entry(space.to_owned()).or_default();
        lane.ready.push_back(uid);
        if !lane.in_turn {
            lane.in_turn = true;
            self.turns.push_back(space.to_owned());
        }
    }

    /// Objects whose wait is over may be written again.
    fn rested(&mut self, now: Instant) {
        while let Some((until, uid)) = self.resting.first().cloned()
            && until <= now
        {
            self.resting.pop_first();
            let Some(entry) = self.entries.get_mut(&uid) else { continue };
            entry.stage = Stage::Ready;
            let space = namespace(&entry.patch).to_owned();
            self.ready(&space, uid);
        }
    }

    fn remove(&mut self, uid: &str) {
        let Some(entry) = self.entries.remove(uid) else { return };
        if let Stage::Resting(until) = entry.stage {
            self.resting.remove(&(until, uid.to_owned()));
        }
        let space = namespace(&entry.patch);
        if let Some(lane) = self.lanes.get_mut(space) {
            lane.objects = lane.objects.saturating_sub(1);
            if lane.objects == 0 {
                self.lanes.remove(space);
                self.turns.retain(|turn| turn != space);
            }
        }
    }
}

#[cfg(test)]
mod tests;
