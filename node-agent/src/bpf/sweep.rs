//! Sweep: removes expired entries from the flow cache. The programs replace expired entries of active flows, but entries of ended
//! flows would stay until the map is full: maps would appear full on any long-running node, and the refresh interval would grow
//! because of ended flows.

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use ebpf::layout::flow::{EgressFlow, IngressFlow};

use super::error::is_absent;

/// Maximum number of entries removed from a map per sweep, as their keys are held in memory.
const MOST: usize = 65_536;

/// Lifetime data of an entry.
pub(super) trait Aged: Pod {
    fn epoch(&self) -> u32;
    fn deadline(&self) -> u32;
}

impl Aged for EgressFlow {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn deadline(&self) -> u32 {
        self.deadline
    }
}

impl Aged for IngressFlow {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn deadline(&self) -> u32 {
        self.deadline
    }
}

/// Time and epoch of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Current epoch.
    pub(super) epoch: u32,
    /// The time, in ticks.
    pub(super) now: u32,
    /// Ticks after its deadline for which an unused entry is kept.
    pub(super) overdue: u32,
}

impl Moment {
    /// Whether the programs will not use the entry for any packet from now on. (In a hold they ignore deadlines, so no sweep may run
    /// then.)
    fn is_over(self, entry: &impl Aged) -> bool {
        let late = self.now.wrapping_sub(entry.deadline()).cast_signed();
        entry.epoch() != self.epoch || late > self.overdue.cast_signed()
    }
}

/// Result of an iteration over a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Entries that were removed.
    pub(super) removed: u64,
    /// Entries that stayed.
    pub(super) stayed: u64,
}

/// Number of entries of a map. `capacity` bounds the iteration: the kernel restarts it from the beginning when the current entry is
/// evicted meanwhile.
pub(super) fn count<K: Pod, V: Pod>(map: &HashMap<MapData, K, V>, capacity: usize) -> Result<Walk, MapError> {
    let stayed = map.keys().take(capacity).try_fold(0, |count, key| key.map(|_| count + 1))?;
    Ok(Walk { removed: 0, stayed })
}

/// Removes expired entries, up to a limit, and counts the others, in one iteration. `capacity` as for [`count`].
pub(super) fn sweep<K: Pod, V: Aged>(
    map: &mut HashMap<MapData, K, V>,
    capacity: usize,
    moment: Moment,
) -> Result<Walk, MapError> {
    let mut walk = Walk::default();
    // Removing entries during the iteration would restart it.
    let mut over = Vec::new();
    for key in map.keys().take(capacity) {
        let key = key?;
        walk.stayed += 1;
        if over.len() < MOST && is_over(map, &key, moment)? {
            over.push(key);
        }
    }
    let mut gone = 0;
    for key in over {
        // If the flow was learned again just now, it will be learned once more.
        match map.remove(&key) {
            Ok(()) => walk.removed += 1,
            // A program or an eviction removed it first.
            Err(error) if is_absent(&error) => gone += 1,
            Err(error) => return Err(error),
        }
    }
    walk.stayed -= walk.removed + gone;
    Ok(walk)
}

/// Whether the entry of a key is over. It may be evicted between listing its key and reading it.
fn is_over<K: Pod, V: Aged>(map: &HashMap<MapData, K, V>, key: &K, moment: Moment) -> Result<bool, MapError> {
    match map.get(key, 0) {
        Ok(entry) => Ok(moment.is_over(&entry)),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_over_when_its_epoch_is_past_or_it_is_overdue() {
        let moment = Moment { epoch: 7, now: 50, overdue: 1_000 };
        let over =
            |epoch, deadline: u32| moment.is_over(&IngressFlow { epoch, deadline, ..IngressFlow::default() });
        assert!(over(6, 2_000) && over(8, 2_000));
        assert!(!over(7, 2_000) && !over(7, 50));
        // The clock has wrapped since.
        let before = |ticks: u32| 50_u32.wrapping_sub(ticks);
        assert!(!over(7, before(1_000)));
        assert!(over(7, before(1_001)));
    }
}
