//! Notes: which slot a packet that enters OVS gets, and whether the packet that comes out with its number is that packet.

use super::Terms;
use super::tuple::Tuple;
use crate::{
    layout::{
        flow::{NOTE_LIVE, NOTE_VOID, Note, Print, Way},
        maps::{BLOCK, BLOCKS, Budget, Cursors, NOTES6, SINGLE_NOTES, SLOT_UPLINK, UPLINK_NOTES},
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

/// The next slot of `slots` for this CPU: the first three quarters of its share are for packets that may make an entry, the last one
/// is for those by which an entry is refreshed (`urgent`), so that a flood of the former costs nobody an entry.
#[inline(always)]
fn next(cursor: &mut [u32; 2], slots: u32, cpu: u32, cpu_shift: u32, urgent: bool) -> u32 {
    let share = slots >> (cpu_shift & 31);
    let (cursor, begin, length) = if urgent {
        (&mut cursor[1], share - share / 4, share / 4)
    } else {
        (&mut cursor[0], 0, share - share / 4)
    };
    let at = cursor.wrapping_add(1);
    *cursor = if at < length { at } else { 0 };
    (cpu & ((1 << (cpu_shift & 31)) - 1)) * share + begin + *cursor
}

/// A slot for a single IPv4 packet.
#[inline(always)]
pub fn single(cursors: &mut Cursors, cpu: u32, cpu_shift: u32, urgent: bool) -> u32 {
    next(&mut cursors.single, SINGLE_NOTES, cpu, cpu_shift, urgent)
}

/// A slot for an IPv6 packet.
#[inline(always)]
pub fn six(cursors: &mut Cursors, cpu: u32, cpu_shift: u32, urgent: bool) -> u32 {
    next(&mut cursors.six, NOTES6, cpu, cpu_shift, urgent)
}

/// The first slot of a block for an IPv4 aggregate.
#[inline(always)]
pub fn aggregate(cursors: &mut Cursors, cpu: u32, cpu_shift: u32, urgent: bool) -> u32 {
    SINGLE_NOTES + BLOCK * next(&mut cursors.block, BLOCKS, cpu, cpu_shift, urgent)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::layout::{flow::Tuple4, maps::Config};

    #[test]
    fn every_slot_of_a_cpu_is_its_own_and_refreshes_have_theirs() {
        let (cpus, shift) = (4, 2);
        let mut owners = std::collections::BTreeMap::new();
        for cpu in 0..cpus {
            for urgent in [false, true] {
                let mut cursors = Cursors::default();
                for _ in 0..SINGLE_NOTES {
                    let slot = single(&mut cursors, cpu, shift, urgent);
                    assert!(slot < SINGLE_NOTES);
                    assert_eq!(*owners.entry(slot).or_insert((cpu, urgent)), (cpu, urgent));
                }
            }
        }
        assert_eq!(owners.len(), usize::try_from(SINGLE_NOTES).unwrap());
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
            let slot = aggregate(&mut cursors, 1, 1, false);
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
