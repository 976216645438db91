//! Allocation of counter slots for pods: from 1; 0 is that of the uplink, the last ones are those of the node.

use std::collections::{BTreeSet, VecDeque};

use ebpf::layout::maps::{LAST_POD_SLOT, SLOT_UPLINK};

/// Slots in use. A released slot is reused as late as possible: a program that is still running on another CPU may add to it.
#[derive(Debug, Default)]
pub(super) struct Slots {
    taken: BTreeSet<u32>,
    given_back: VecDeque<u32>,
    /// Slots from here on were never used.
    next: u32,
}

impl Slots {
    /// Pods that can have a slot.
    pub(super) const CAPACITY: u32 = LAST_POD_SLOT;

    /// Marks a slot as in use. False if it is not a pod's slot, or is in use already.
    pub(super) fn claim(&mut self, slot: u32) -> bool {
        slot != SLOT_UPLINK && slot <= LAST_POD_SLOT && self.taken.insert(slot)
    }

    /// A free slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        while self.next < Self::CAPACITY {
            self.next += 1;
            if self.taken.insert(self.next) {
                return Some(self.next);
            }
        }
        while let Some(slot) = self.given_back.pop_front() {
            if self.taken.insert(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Releases a slot.
    pub(super) fn give_back(&mut self, slot: u32) {
        if self.taken.remove(&slot) {
            self.given_back.push_back(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_is_handed_out_twice_and_the_uplinks_never() {
        let mut slots = Slots::default();
        assert!(slots.claim(3));
        assert!(!slots.claim(3));
        assert!(!slots.claim(SLOT_UPLINK));
        assert!(!slots.claim(LAST_POD_SLOT + 1));
        let mut seen = BTreeSet::from([3]);
        while let Some(slot) = slots.take() {
            assert!(slot != SLOT_UPLINK && slot <= LAST_POD_SLOT);
            assert!(seen.insert(slot), "{slot} twice");
        }
        assert_eq!(seen.len(), usize::try_from(Slots::CAPACITY).unwrap());
    }

    #[test]
    fn a_slot_given_back_is_used_again_last() {
        let mut slots = Slots::default();
        let first = slots.take().unwrap();
        slots.give_back(first);
        assert_ne!(slots.take(), Some(first));
        while slots.take().is_some_and(|slot| slot != first) {}
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn a_slot_of_the_previous_agent_that_is_given_back_becomes_free() {
        let mut slots = Slots::default();
        assert!(slots.claim(1));
        slots.give_back(1);
        let mut all = Vec::new();
        while let Some(slot) = slots.take() {
            all.push(slot);
        }
        assert_eq!(all.iter().filter(|slot| **slot == 1).count(), 1);
    }
}
