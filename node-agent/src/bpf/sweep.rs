//! Taking out of the flow cache what no packet will use again. The programs do that themselves for flows that go on; of one
//! that has ended nobody asks, and its entry would stay until the map is full: the maps would look full on every node that
//! has run for a while, and refreshes would be stretched for flows that are gone.

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use ebpf::flow::{EgressFlow, IngressFlow};

/// At most so many entries of a map go at a time: their keys are held in memory meanwhile.
const MOST: usize = 65_536;

/// What an entry tells of its life.
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

/// The moment of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// The node's epoch.
    pub(super) epoch: u32,
    /// The time, in ticks.
    pub(super) now: u32,
    /// An entry that nobody used for this long after its deadline is learned anew, in ticks.
    pub(super) overdue: u32,
}

impl Moment {
    /// Whether the programs would not use the entry for any packet from now on. (While OVS is away they do not look at
    /// deadlines: that is no moment for a sweep.)
    fn is_over(self, entry: &impl Aged) -> bool {
        let late = self.now.wrapping_sub(entry.deadline()).cast_signed();
        entry.epoch() != self.epoch || late > self.overdue.cast_signed()
    }
}

/// Removes what is over, up to a limit; how many entries that were.
pub(super) fn sweep<K: Pod, V: Aged>(
    map: &mut HashMap<MapData, K, V>,
    moment: Moment,
) -> Result<u64, MapError> {
    // An entry may be evicted between listing its key and reading it. Removing while listing would begin the list anew.
    let over = map.iter().filter_map(Result::ok).filter(|(_, entry)| moment.is_over(entry));
    let keys: Vec<K> = over.map(|(key, _)| key).take(MOST).collect();
    let mut removed = 0;
    for key in keys {
        // If the flow has just been learned again, it will be once more.
        match map.remove(&key) {
            Ok(()) => removed += 1,
            Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
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
        // The clock has gone round since.
        let before = |ticks: u32| 50_u32.wrapping_sub(ticks);
        assert!(!over(7, before(1_000)));
        assert!(over(7, before(1_001)));
    }
}
