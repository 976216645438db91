//! Sweep: removes expired entries from the flow cache. The programs replace expired entries of active flows, but entries of ended
//! flows would stay until the map is full: maps would appear full on any long-running node, and the refresh interval would grow
//! because of ended flows.

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use ebpf::{
    decide::age::{Times, trusted},
    layout::flow::Entry,
};

use super::error::is_absent;

/// Maximum number of entries removed from a map per sweep, as their keys are held in memory.
const MOST: usize = 65_536;

/// Time and epoch of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Current epoch.
    pub(super) epoch: u32,
    /// The time, in ticks.
    pub(super) now: u32,
    /// What decides how long after its deadline an unused entry is kept.
    pub(super) times: Times,
}

impl Moment {
    /// Whether the programs would not use the entry for any packet from now on. (While OVS is away they do not look at
    /// deadlines: that is no moment for a sweep.)
    fn is_over<T>(self, entry: &Entry<T>) -> bool {
        let late = self.now.wrapping_sub(entry.deadline).cast_signed();
        entry.epoch != self.epoch || late > trusted(entry.probing, self.times).cast_signed()
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

/// How many entries a map has. `capacity` bounds the walk: the kernel begins the list anew when the entry that it had come to
/// is evicted meanwhile.
pub(super) fn count<K: Pod, V: Pod>(map: &HashMap<MapData, K, V>, capacity: usize) -> Result<Walk, MapError> {
    let stayed = map.keys().take(capacity).try_fold(0, |count, key| key.map(|_| count + 1))?;
    Ok(Walk { removed: 0, stayed })
}

/// Removes what is over, up to a limit, and counts the rest, in one walk. `capacity` as for [`count`]; `see` is called with every
/// entry. What is over counts no more, so what it is seen with is its last.
pub(super) fn sweep<T: Pod>(
    map: &mut HashMap<MapData, T, Entry<T>>,
    capacity: usize,
    moment: Moment,
    see: &mut dyn FnMut(&T, &Entry<T>),
) -> Result<Walk, MapError>
where
    Entry<T>: Pod,
{
    let mut walk = Walk::default();
    // Removing while listing would begin the list anew.
    let mut over = Vec::new();
    for key in map.keys().take(capacity) {
        let key = key?;
        walk.stayed += 1;
        let Some(entry) = entry(map, &key)? else { continue };
        see(&key, &entry);
        if over.len() < MOST && moment.is_over(&entry) {
            over.push(key);
        }
    }
    let mut gone = 0;
    for key in over {
        // If the flow has just been learned again, it will be once more.
        match map.remove(&key) {
            Ok(()) => walk.removed += 1,
            // A program or an eviction was first.
            Err(error) if is_absent(&error) => gone += 1,
            Err(error) => return Err(error),
        }
    }
    walk.stayed -= walk.removed + gone;
    Ok(walk)
}

/// The entry of a key; `None` if it was evicted between listing its key and reading it.
pub(super) fn entry<T: Pod>(
    map: &HashMap<MapData, T, Entry<T>>,
    key: &T,
) -> Result<Option<Entry<T>>, MapError>
where
    Entry<T>: Pod,
{
    match map.get(key, 0) {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf::layout::flow::{PROBE_FIRST, Tuple4};

    #[test]
    fn an_entry_is_over_when_its_epoch_is_past_or_it_is_overdue() {
        let moment = Moment { epoch: 7, now: 50, times: Times { slack: 200, overdue: 1_000, early: 1_500 } };
        let over =
            |epoch, deadline: u32| moment.is_over(&Entry::<Tuple4> { epoch, deadline, ..Entry::default() });
        assert!(over(6, 2_000) && over(8, 2_000));
        assert!(!over(7, 2_000) && !over(7, 50));
        // The clock has gone round since.
        let before = |ticks: u32| 50_u32.wrapping_sub(ticks);
        assert!(!over(7, before(1_000)));
        assert!(over(7, before(1_001)));
        let first = |ticks| Entry::<Tuple4> {
            epoch: 7,
            deadline: before(ticks),
            probing: PROBE_FIRST,
            ..Entry::default()
        };
        assert!(!moment.is_over(&first(2_500)) && moment.is_over(&first(2_501)));
    }
}
