//! Notes: which slot a packet that enters OVS gets, and whether the packet that comes out with its number is that packet.

use super::Terms;
use super::tuple::Tuple;
use crate::{
    layout::{
        flow::{NOTE_LIVE, NOTE_VOID, Note, Print, Way},
        maps::{BLOCK, BLOCKS, Budget, Cursor, Cursors, NOTES6, SINGLE_NOTES, SLOT_UPLINK, UPLINK_NOTES},
        reason::Reason,
    },
    packet::{Flow, TCP},
};

/// Whether a slot may be used again: its packet is out, or so late that it teaches nothing.
#[inline(always)]
pub fn is_free<T>(old: &Note<T>, terms: &Terms<'_>) -> bool {
    // Another CPU may have read the clock after us: then the age is a little less than 0.
    let age = terms.now.wrapping_sub(old.when);
    old.state == NOTE_VOID
        || (age >= terms.config.note_reuse && age <= terms.config.note_reuse.wrapping_neg())
}

/// Puts the note of a packet that enters OVS now into its slot, field by field, as a copy would need more stack than programs have.
/// `segment`: payload bytes of one segment, 0 for a single packet. The flow, [`Note::tuple`], is left to the caller.
#[inline(always)]
pub fn fill<T>(
    note: &mut Note<T>,
    flow: &Flow<T>,
    (way, macs): (Way, [u32; 3]),
    print: Print,
    segment: u32,
    terms: &Terms<'_>,
) {
    note.epoch = terms.epoch;
    note.change = terms.change;
    note.when = terms.now;
    note.way = way;
    note.macs = macs;
    note.print = print;
    note.original = flow.word;
    note.ttl = flow.ttl;
    note.tos = flow.tos;
    note.state = NOTE_LIVE;
    note.generation = note.generation.wrapping_add(1);
    note.segment = segment;
}

/// Whether the packet that came out is the one of the note, as far as a translation leaves it as it is. `index`: of the segment, if
/// OVS got an aggregate in pieces.
#[inline(always)]
pub fn fits<T: Tuple>(note: &Note<T>, protocol: u8, print: &Print, index: u32) -> bool {
    if note.tuple.protocol() != protocol {
        return false;
    }
    if note.segment == 0 {
        return note.print == *print;
    }
    if protocol == TCP {
        let first = note.print.first.wrapping_add(index.wrapping_mul(note.segment));
        return print.first == first && print.second == note.print.second;
    }
    // Of the others the note does not know the payload.
    index != 0 || (print.first == note.print.first && print.second == note.print.second)
}

/// Takes one note from what a port may take on this CPU, so that a pod that sends what is never learned costs others nothing. `slot`: of
/// the port's counters.
///
/// # Errors
/// [`Reason::PortBudget`]: nothing is left of it in this window.
#[inline(always)]
pub const fn spend(budget: &mut Budget, slot: u32, terms: &Terms<'_>) -> Result<(), Reason> {
    let window = terms.now >> (terms.config.budget_shift & 31);
    if budget.window != window {
        budget.window = window;
        budget.used = 0;
    }
    let limit = if slot == SLOT_UPLINK {
        terms.config.note_budget.wrapping_mul(UPLINK_NOTES)
    } else {
        terms.config.note_budget
    };
    if budget.used >= limit {
        return Err(Reason::PortBudget);
    }
    budget.used += 1;
    Ok(())
}

/// Whose slots they are that a packet takes one of.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Number of this CPU.
    pub cpu: u32,
    /// Number of CPUs as a power of two, see [`crate::layout::maps::Config::cpu_shift`].
    pub cpu_shift: u32,
    /// The packet is one by which an entry is refreshed. The last quarter of a CPU's slots is for those, so that a flood of packets that may
    /// make an entry costs nobody an entry.
    pub urgent: bool,
}

/// The most slots of a group, see [`Cursor`].
const GROUP: u32 = 512;

/// The next slot of `slots`. Which one of its group cannot be known: a packet that was held back, and whose slot has another owner
/// meanwhile, meets the owner that it was made for by chance only. `random`: draws a number.
#[inline(always)]
fn next(cursors: &mut [Cursor; 2], slots: u32, share: Share, random: impl FnOnce() -> u32) -> u32 {
    let whole = slots >> (share.cpu_shift & 31);
    let (cursor, begin, length) = if share.urgent {
        (&mut cursors[1], whole - whole / 4, whole / 4)
    } else {
        (&mut cursors[0], 0, whole - whole / 4)
    };
    let at = if cursor.at < length { cursor.at } else { 0 };
    cursor.at = at.wrapping_add(1);
    // The greatest power of two of which the length is a multiple, so that the last group is whole too.
    let group = length & length.wrapping_neg();
    let places = (if group < GROUP { group } else { GROUP }).saturating_sub(1);
    if at & places == 0 {
        cursor.key = random() & places;
    }
    let cpu = share.cpu & ((1 << (share.cpu_shift & 31)) - 1);
    cpu * whole + begin + (at ^ cursor.key)
}

/// A slot for a single IPv4 packet.
#[inline(always)]
pub fn single(cursors: &mut Cursors, share: Share, random: impl FnOnce() -> u32) -> u32 {
    next(&mut cursors.single, SINGLE_NOTES, share, random)
}

/// A slot for an IPv6 packet.
#[inline(always)]
pub fn six(cursors: &mut Cursors, share: Share, random: impl FnOnce() -> u32) -> u32 {
    next(&mut cursors.six, NOTES6, share, random)
}

/// The first slot of a block for an IPv4 aggregate.
#[inline(always)]
pub fn aggregate(cursors: &mut Cursors, share: Share, random: impl FnOnce() -> u32) -> u32 {
    SINGLE_NOTES + BLOCK * next(&mut cursors.block, BLOCKS, share, random)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::layout::{flow::Tuple4, maps::Config};

    #[test]
    fn every_slot_of_a_cpu_is_its_own_and_refreshes_have_theirs() {
        let (cpus, cpu_shift) = (4, 2);
        let mut owners = std::collections::BTreeMap::new();
        for cpu in 0..cpus {
            for urgent in [false, true] {
                let mut cursors = Cursors::default();
                for turn in 0..SINGLE_NOTES {
                    let share = Share { cpu, cpu_shift, urgent };
                    let slot = single(&mut cursors, share, || turn.wrapping_mul(0x9e37_79b9));
                    assert!(slot < SINGLE_NOTES);
                    assert_eq!(*owners.entry(slot).or_insert((cpu, urgent)), (cpu, urgent));
                }
            }
        }
        assert_eq!(owners.len(), usize::try_from(SINGLE_NOTES).unwrap());
    }

    #[test]
    fn a_slot_comes_again_after_nearly_a_whole_round_and_where_in_its_group_is_no_pattern() {
        let share = Share { cpu: 0, cpu_shift: 1, urgent: false };
        let length = SINGLE_NOTES / 2 / 4 * 3;
        let (mut cursors, mut last) = (Cursors::default(), std::collections::BTreeMap::new());
        let mut distances = std::collections::BTreeSet::new();
        for turn in 0..length * 3 {
            let random = || turn.wrapping_mul(0x9e37_79b9).rotate_left(7);
            let slot = single(&mut cursors, share, random);
            if let Some(before) = last.insert(slot, turn) {
                distances.insert(turn - before);
            }
        }
        assert!(distances.first().is_some_and(|&least| least > length - GROUP), "{distances:?}");
        assert!(distances.len() > 32, "{distances:?}");
    }

    #[test]
    fn nobody_knows_the_first_slot_either() {
        let first = |random: u32| {
            let share = Share { cpu: 0, cpu_shift: 0, urgent: false };
            single(&mut Cursors::default(), share, || random)
        };
        assert_eq!((first(5), first(GROUP + 6)), (5, 6));
    }

    #[test]
    fn many_processors_have_small_groups_and_more_than_slots_have_none() {
        for cpu_shift in 0..=12 {
            for urgent in [false, true] {
                let mut cursors = Cursors::default();
                let share = Share { cpu: 1, cpu_shift, urgent };
                for _ in 0..2_000 {
                    assert!(aggregate(&mut cursors, share, || u32::MAX) < 0x1_0000);
                    assert!(six(&mut cursors, share, || u32::MAX) < NOTES6);
                }
            }
        }
    }

    #[test]
    fn a_port_takes_no_more_notes_in_a_window_than_its_share_and_the_uplink_some_times_as_many() {
        let config = Config { note_budget: 5, budget_shift: 4, ..Config::default() };
        for (slot, share) in [(SLOT_UPLINK, 20), (1, 5)] {
            let mut budget = Budget::default();
            for now in [16, 17, 32] {
                let terms = Terms { config: &config, gate: 0, epoch: 1, change: 0, now };
                let taken = (0..50).filter(|_| spend(&mut budget, slot, &terms).is_ok()).count();
                assert_eq!(taken, if now == 17 { 0 } else { share }, "slot {slot}, tick {now}");
            }
        }
    }

    #[test]
    fn blocks_are_whole_and_beyond_the_single_slots() {
        let mut cursors = Cursors::default();
        for _ in 0..BLOCKS * 2 {
            let slot = aggregate(&mut cursors, Share { cpu: 1, cpu_shift: 1, urgent: false }, || 5);
            assert!((SINGLE_NOTES..0x1_0000).contains(&slot) && slot.is_multiple_of(BLOCK));
        }
    }

    #[test]
    fn a_slot_is_used_again_when_its_note_is_old_also_where_the_clock_wraps() {
        let config = Config { note_reuse: 1_000, ..Config::default() };
        for when in [5_000_u32, 0, u32::MAX - 10] {
            let note = Note::<Tuple4> { when, state: NOTE_LIVE, ..Note::default() };
            let at = |later: u32| {
                let now = when.wrapping_add(later);
                is_free(&note, &Terms { config: &config, gate: 0, epoch: 1, change: 0, now })
            };
            assert!(!at(0) && !at(999) && at(1_000) && !at(u32::MAX));
        }
        let terms = Terms { config: &config, gate: 0, epoch: 1, change: 0, now: 0 };
        assert!(is_free(&Note::<Tuple4>::default(), &terms), "never used");
    }

    #[test]
    fn a_note_fits_its_packet_and_the_segments_of_its_aggregate() {
        let tuple = Tuple4 { protocol: TCP, ..Tuple4::default() };
        let print = Print { length: 40, first: u32::MAX - 10, second: 7 };
        let note = Note { tuple, print, ..Note::default() };
        assert!(fits(&note, TCP, &print, 0));
        for other in
            [Print { length: 41, ..print }, Print { first: 1, ..print }, Print { second: 8, ..print }]
        {
            assert!(!fits(&note, TCP, &other, 0));
        }
        assert!(!fits(&note, crate::packet::UDP, &print, 0));
        let note = Note { segment: 1_000, ..note };
        let third = Print { length: 9, first: (u32::MAX - 10).wrapping_add(2_000), second: 7 };
        assert!(fits(&note, TCP, &third, 2) && !fits(&note, TCP, &third, 1));
    }
}
