//! UDP is learned from the second packet of a flow: many a flow has one packet each way, a question and its answer, and an entry of it
//! carries nothing.
//!
//! The map `SEEN` has a *sighting* in each slot: whose packet was last seen, by a hash of its flow, and when. Flows whose hashes
//! share a slot take it from each other, and two whose hashes are equal take each other's packets for their own; either costs or spares a packet
//! its note and nothing else, as what is learned is what OVS did with the packet.

use super::tuple::Tuple;
use crate::layout::maps::SEEN;

/// The slot of a flow, and the sighting of a packet of it now.
#[inline(always)]
pub fn sighting(tuple: &impl Tuple, now: u32) -> (u32, u64) {
    let hash = tuple.digest();
    (upper(hash) >> (32 - SEEN.ilog2()), hash << 32 | now as u64)
}

/// Whether there was a packet of the flow within this time. `before`: what was in the slot; `sighting`: of the packet that came now.
#[inline(always)]
pub const fn again(before: u64, sighting: u64, window: u32) -> bool {
    upper(before) == upper(sighting) && lower(sighting).wrapping_sub(lower(before)) <= window
}

#[inline(always)]
const fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "a part of the word")]
#[inline(always)]
const fn lower(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeSet;

    use super::*;
    use crate::layout::flow::{Tuple4, Tuple6};

    #[test]
    fn the_second_packet_within_the_time_is_seen_again_also_where_the_clock_wraps() {
        let (tuple, other) =
            (Tuple4 { source: 1, ..Tuple4::default() }, Tuple4 { source: 2, ..Tuple4::default() });
        for now in [1_000, 3, u32::MAX] {
            let (slot, first) = sighting(&tuple, now);
            for (later, expected) in [(0, true), (100, true), (101, false), (1 << 31, false)] {
                let (same, second) = sighting(&tuple, now.wrapping_add(later));
                assert_eq!((same, again(first, second, 100)), (slot, expected), "{later}");
            }
            assert!(!again(first, sighting(&other, now).1, 100));
        }
    }

    #[test]
    fn flows_that_are_nearly_the_same_have_slots_and_sightings_of_their_own() {
        let (mut slots, mut records, mut six) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for number in 0..SEEN {
            let port = u16::try_from(number % 65_536).unwrap();
            let tuple = Tuple4 {
                source: 0x0100_f40a,
                destination: 0x0a00_600a,
                source_port: port,
                destination_port: 53,
                ..Tuple4::default()
            };
            let (slot, seen) = sighting(&tuple, 0);
            assert!(slot < SEEN);
            slots.insert(slot);
            records.insert(seen);
            let tuple = Tuple6 { source: [1, 2, 3, 4], destination: [5, 6, 7, number], ..Tuple6::default() };
            six.insert(sighting(&tuple, 0));
        }
        // Of random ones 63 % of the slots would be taken.
        assert!(slots.len() > usize::try_from(SEEN / 2).unwrap(), "{}", slots.len());
        assert_eq!(
            (records.len(), six.len()),
            (usize::try_from(SEEN).unwrap(), usize::try_from(SEEN).unwrap())
        );
    }

    #[test]
    fn each_part_of_a_flow_counts() {
        let tuple = Tuple4 {
            source: 1,
            destination: 2,
            source_port: 3,
            destination_port: 4,
            protocol: 17,
            side: 1,
            _pad: 0,
        };
        let six = Tuple6 {
            source: [1; 4],
            destination: [2; 4],
            source_port: 3,
            destination_port: 4,
            protocol: 17,
            side: 1,
            _pad: 0,
        };
        let others = [
            Tuple4 { source: 9, ..tuple },
            Tuple4 { destination: 9, ..tuple },
            Tuple4 { source_port: 9, ..tuple },
            Tuple4 { destination_port: 9, ..tuple },
            Tuple4 { side: 2, ..tuple },
            Tuple4 { source: 2, destination: 1, ..tuple },
        ];
        assert!(others.iter().all(|other| sighting(other, 0).1 != sighting(&tuple, 0).1));
        for at in 0..4 {
            let (mut source, mut destination) = (six, six);
            source.source[at] = 9;
            destination.destination[at] = 9;
            assert_ne!(sighting(&source, 0).1, sighting(&six, 0).1);
            assert_ne!(sighting(&destination, 0).1, sighting(&six, 0).1);
        }
    }
}
