//! Notes: what is remembered of a packet while it is inside OVS, and how the packet that comes out finds its own. See
//! [`ebpf::decide::tag`] for how it carries the number, and [`ebpf::decide::note`] for what is decided.

use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_get_smp_processor_id};
use ebpf::decide::tuple::Tuple as _;
use ebpf::{
    decide::{Terms, note, tag},
    layout::{
        flow::{GATE_LEARN, NOTE_SPENT, NOTE_VOID, Note, Print},
        maps::{Config, PORT_INTERPOSED},
        reason::Reason,
    },
    packet::{IPV4, IPV6, Packet as _},
};

use super::{
    count,
    family::{Family, V4, V6},
    forward::Arrival,
    maps,
    pass::{Outcome, Pass},
    skb::{Front, Skb, now},
};

/// Notes the packet, and gives it its tag. `urgent`: an entry dies if it is not noted. What `front` shows is void afterwards.
#[inline(always)]
pub(super) fn leave<F: Family, const AT: u32>(
    skb: &Skb,
    front: &Front,
    packet: &Arrival<'_, F, AT>,
    pass: &Pass<'_>,
    urgent: bool,
) -> Outcome {
    let terms = pass.terms();
    if terms.gate & GATE_LEARN == 0 {
        count::reason(Reason::LearningOff);
        return Outcome::SLOW;
    }
    let interposed = pass.port.flags & PORT_INTERPOSED != 0;
    if !interposed && skb.tag() != 0 {
        count::reason(Reason::PriorityTaken);
        return Outcome::SLOW;
    }
    let segment = pass.meta.gso_size;
    let segments = if interposed && segment != 0 {
        packet.flow.length.wrapping_sub(packet.flow.headers).div_ceil(segment)
    } else {
        0
    };
    let slot = F::take_slot(pass.payer, urgent.into(), segments, terms.now);
    if slot & NONE != 0 {
        count::numbered(slot & !NONE);
        return Outcome::SLOW;
    }
    // There is one for each number.
    let Some(note) = F::notes().get_ptr_mut(slot) else { return Outcome::SLOW };
    // SAFETY: a value of an array.
    let note = unsafe { &mut *note };
    let print = F::print(front, AT, packet.flow);
    note::fill(note, packet.flow, (packet.way, packet.macs), print, segment, &terms);
    // SAFETY: a field of a value of an array.
    unsafe { write_words(&raw mut note.tuple, &packet.flow.tuple) };
    if interposed {
        write::<F>(skb, AT, packet.flow.word, F::mark(packet.flow.word, slot));
    } else {
        skb.set_tag(tag::note(note.generation, slot));
    }
    Outcome::NOTED
}

/// In place of a slot's number: what is beside it is the index of the reason why there is none.
const NONE: u32 = 1 << 31;

/// The body of [`Family::take_slot`]: a slot for the note of a packet, or [`NONE`] and why. `payer`: whose budget it is, for what is not
/// `urgent`; `segments` as for [`Family::slot`].
#[inline(always)]
pub(super) fn take<F: Family>(payer: u32, urgent: bool, segments: u32, now: u32) -> u32 {
    let Some(config) = maps::config() else { return NONE | Reason::NoSlot.index() };
    let terms = Terms { config, gate: 0, epoch: 0, change: 0, now };
    if !urgent && let Err(reason) = take_from_budget(payer, &terms) {
        return NONE | reason.index();
    }
    match slot::<F>(&terms, urgent, segments) {
        Some((slot, _)) => slot,
        None => NONE | Reason::NoSlot.index(),
    }
}

/// Takes a note from what the port with this counter slot may take.
#[inline(always)]
fn take_from_budget(slot: u32, terms: &Terms<'_>) -> Result<(), Reason> {
    let Some(budget) = maps::NOTE_BUDGET.get_ptr_mut(slot) else { return Err(Reason::PortBudget) };
    // SAFETY: a value of a per-CPU array, which only this CPU writes.
    note::spend(unsafe { &mut *budget }, slot, terms)
}

/// A slot of this CPU, and its number. `None`: it is not free. Who reads it while it is written finds a note that does not fit its
/// packet.
#[inline(always)]
fn slot<F: Family>(
    terms: &Terms<'_>,
    urgent: bool,
    segments: u32,
) -> Option<(u32, &'static mut Note<F::Tuple>)> {
    let cursors = maps::NOTE_CURSOR.get_ptr_mut(0)?;
    // SAFETY: a value of a per-CPU array, which only this CPU writes; the helper only reads a number.
    let (cursors, cpu) = unsafe { (&mut *cursors, bpf_get_smp_processor_id()) };
    let share = note::Share { cpu, cpu_shift: terms.config.cpu_shift, urgent };
    let number = F::slot(cursors, share, segments)?;
    let slot = F::notes().get_ptr_mut(number)?;
    // SAFETY: a value of an array.
    let slot = unsafe { &mut *slot };
    note::is_free(slot, terms).then_some((number, slot))
}

/// Draws a number.
#[inline(always)]
pub(super) fn random() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_get_prandom_u32() }
}

/// Writes a value word by word: for what may overlap, as far as the compiler knows, it would call a function that goes byte by
/// byte.
#[inline(always)]
unsafe fn write_words<T: Copy>(to: *mut T, value: &T) {
    const { assert!(size_of::<T>().is_multiple_of(4) && align_of::<T>() == 4) };
    let (to, from) = (to.cast::<u32>(), core::ptr::from_ref(value).cast::<u32>());
    let mut at = 0;
    while at < size_of::<T>() / 4 {
        // SAFETY: inside both values, which the caller vouches for. Volatile, so that the loop stays one of words.
        unsafe { to.add(at).write_volatile(from.add(at).read()) };
        at += 1;
    }
}

/// Replaces the word that carries a mark, in the IP header at `at`.
#[inline(always)]
pub(super) fn write<F: Family>(skb: &Skb, at: u32, before: u32, after: u32) {
    if F::VERSION == 6 {
        // Not covered by any checksum but one that hardware made of the packet, which the helper corrects.
        skb.store(at + F::WORD, &after.to_ne_bytes(), true);
        return;
    }
    let Some([a, b]) = skb.read::<2>(at + 10) else { return };
    let checksum = tag::checksum4(u16::from_ne_bytes([a, b]), before, after);
    // The two changes cancel out in the sum of the header.
    skb.store(at + F::WORD, &after.to_ne_bytes(), false);
    skb.store(at + 10, &checksum.to_ne_bytes(), false);
}

/// Takes off what looks like our mark from a packet that enters OVS and is not noted: no sender can then make one, and no label is
/// one by chance. `at`: offset of the Ethernet header in front of the IP header; `port`: counter slot of the port.
#[inline(always)]
pub(super) fn clean(skb: &Skb, at: u32, port: u32, config: &Config) {
    match ethertype(skb, at) {
        IPV4 => {
            if let Some((word, _)) = marked::<V4>(skb, at + 14) {
                count::reason(Reason::ForeignMark);
                write::<V4>(skb, at + 14, word, V4::unmark(word));
            }
        }
        IPV6 => {
            if let Some((word, _)) = marked::<V6>(skb, at + 14) {
                hide(skb, at + 14, word, port, config);
            }
        }
        _ => {}
    }
}

/// A packet whose own flow label looks like a mark, as one flow in 64 has: it gets a slot, which only gives the label back.
#[inline(always)]
fn hide(skb: &Skb, at: u32, word: u32, port: u32, config: &Config) {
    let terms = Terms { config, gate: 0, epoch: maps::epoch(config), change: 0, now: now() };
    let found = if take_from_budget(port, &terms).is_ok() { slot::<V6>(&terms, false, 0) } else { None };
    let changed = match found {
        Some((slot, note)) => {
            note.when = terms.now;
            note.original = word;
            note.state = NOTE_SPENT;
            // No protocol: it is only to be put back.
            note.tuple.protocol = 0;
            V6::mark(word, slot)
        }
        None => {
            count::reason(Reason::ForeignMark);
            V6::unmark(word)
        }
    };
    write::<V6>(skb, at, word, changed);
}

#[inline(always)]
pub(super) fn ethertype(skb: &Skb, at: u32) -> u16 {
    skb.read::<2>(at + 12).map_or(0, u16::from_be_bytes)
}

/// The marked word of the IP header at `at`, and its slot.
#[inline(always)]
fn marked<F: Family>(skb: &Skb, at: u32) -> Option<(u32, u32)> {
    let word = u32::from_ne_bytes(skb.read::<4>(at + F::WORD)?);
    Some((word, F::marked(word)?))
}

/// The note of a packet that comes out of OVS, and the index of the segment that it is.
pub(super) struct Claim<T: 'static> {
    pub(super) note: *mut Note<T>,
    pub(super) index: u32,
}

/// Finds the note of a packet whose IP header is at `at`, and takes its mark off. If the note is of this packet it gets back what it
/// had. `protocol`, `print`: of the packet, if it is one that can have been noted; else 0, as an option would be undefined where there
/// is none, and the verifier refuses to have that copied.
#[inline(always)]
pub(super) fn claim<F: Family>(
    skb: &Skb,
    at: u32,
    interposed: bool,
    tag: u32,
    protocol: u8,
    print: &Print,
) -> Option<Claim<F::Tuple>> {
    if !interposed {
        let note = F::notes().get_ptr_mut(tag::slot(tag)?)?;
        // SAFETY: a value of an array.
        if unsafe { (*note).generation } != tag::generation(tag) {
            return None;
        }
        return Some(Claim { note, index: 0 });
    }
    let (word, slot) = marked::<F>(skb, at)?;
    let (slot, index) = if F::VERSION == 4 { tag::block(slot) } else { (slot, 0) };
    let note = F::notes().get_ptr_mut(slot)?;
    // SAFETY: a value of an array.
    let left = unsafe { &*note };
    let its_own = if left.tuple.protocol() == 0 {
        // Noted only to be put back, whatever it is.
        left.state == NOTE_SPENT
    } else {
        left.state != NOTE_VOID && note::fits(left, protocol, print, index)
    };
    let after = if its_own {
        F::original(word, left.original, index)
    } else {
        count::reason(Reason::StrayMark);
        F::unmark(word)
    };
    write::<F>(skb, at, word, after);
    its_own.then_some(Claim { note, index })
}

/// Takes the mark off a packet that leaves where nothing is learned. `at`: offset of its Ethernet header.
#[inline(always)]
pub(super) fn release(skb: &Skb, at: u32) {
    #[inline(always)]
    fn of<F: Family>(skb: &Skb, at: u32) {
        if marked::<F>(skb, at).is_none() {
            return;
        }
        // Only in front of what is contiguous; for others the mark is taken off, and the identification stays.
        let (mut protocol, mut print) = (0, Print::default());
        if at == 14 {
            let front = skb.front(14 + F::HEADER + 20);
            if let Ok(flow) = F::parse(&front, 14, skb.len().wrapping_sub(14)) {
                protocol = flow.tuple.protocol();
                print = F::print(&front, 14, &flow);
            }
        }
        claim::<F>(skb, at, true, 0, protocol, &print);
    }
    match ethertype(skb, at) {
        IPV4 => of::<V4>(skb, at + 14),
        IPV6 => of::<V6>(skb, at + 14),
        _ => {}
    }
}

/// The note has taught what it had to.
#[inline(always)]
pub(super) fn spend<T>(claim: &Claim<T>) {
    // SAFETY: a value of an array; a store of one byte.
    unsafe { (*claim.note).state = NOTE_SPENT };
}
