//! Notes: what is remembered of a packet while it is inside OVS, and how the packet that comes out finds its own.
//!
//! Direct mode: the packet keeps its tag, which names a slot. Interposed mode: OVS drops it, and the note is
//! found by the flow. There a younger packet must not take the place of one that is still inside OVS and entered in
//! another epoch: that one would be credited with the younger one's. And where packets of one flow came two ways, none teaches;
//! so a packet is remembered there also while nothing is learned.

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use ebpf::{
    decide::{
        Terms,
        pending::{self, Taken},
        tag,
    },
    layout::flow::{
        FROM_POD, FROM_TUNNEL, GATE_LEARN, NOTE_LIVE, NOTE_MARK, NOTE_UNLEARNED, NOTE_VOID, Note, Slot,
    },
    layout::maps::{NOTES_PER_CPU, PORT_INTERPOSED, Port},
    layout::reason::Reason,
};

use super::{count, family::Family, maps, skb::Skb};

/// Remembers the packet. `port` is where the packet is; `urgent`: an entry dies if this packet is not noted.
#[inline(always)]
pub(super) fn leave<F: Family>(
    skb: &Skb,
    port: &Port,
    terms: &Terms<'_>,
    tuple: &F::Tuple,
    mut note: Note,
    urgent: bool,
) {
    let learning = terms.gate & GATE_LEARN != 0;
    if !learning {
        count::reason(Reason::LearningOff);
        if note.live == NOTE_LIVE {
            note.live = NOTE_UNLEARNED;
        }
    }
    if port.flags & PORT_INTERPOSED != 0 {
        by_flow::<F>(terms, tuple, note, urgent);
    } else if learning {
        by_tag::<F>(skb, tuple, note);
    }
}

#[inline(always)]
fn by_flow<F: Family>(terms: &Terms<'_>, tuple: &F::Tuple, mut note: Note, urgent: bool) {
    let direction = if note.ifindex == 0 { FROM_TUNNEL } else { FROM_POD };
    let key = F::with_direction(tuple, direction);
    if let Some(old) = F::pending().get_ptr_mut(&key) {
        // SAFETY: a map value. An LRU map may reuse it meanwhile; then what is read and written is another note, and the
        // worst is that a packet is not noted.
        let old = unsafe { &mut *old };
        if !pending::gives_way(old, &mut note, terms.config, urgent) {
            if note.live == NOTE_LIVE {
                count::reason(Reason::NoteKept);
            }
            return;
        }
    }
    if F::pending().insert(&key, note, 0).is_err() {
        count::reason(Reason::InsertFailed);
    }
}

#[inline(always)]
fn by_tag<F: Family>(skb: &Skb, tuple: &F::Tuple, note: Note) {
    if skb.tag() != 0 {
        // Somebody else's: it stays.
        count::reason(Reason::NoteKept);
        return;
    }
    let Some(cursor) = maps::NOTE_CURSOR.get_ptr_mut(0) else { return };
    // SAFETY: a value of a per-CPU array, which only this CPU writes; the helper only reads a number.
    let (at, cpu) = unsafe {
        *cursor = (*cursor).wrapping_add(1);
        (*cursor, bpf_get_smp_processor_id())
    };
    let number = (cpu.wrapping_mul(NOTES_PER_CPU) | (at & (NOTES_PER_CPU - 1))) & 0xffff;
    let Some(slot) = F::notes().get_ptr_mut(number) else { return };
    let epoch = note.epoch;
    // SAFETY: a value of an array. Who reads it while it is written finds another flow or epoch than its packet's.
    unsafe {
        write_words(&raw mut (*slot).note, &note);
        write_words(&raw mut (*slot).tuple, tuple);
    }
    skb.set_tag(tag::note(epoch, number));
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

/// Takes the note of the packet, if it was left by one that entered as `direction` says (in direct mode the note tells).
/// Only one that is live may teach.
#[inline(always)]
pub(super) fn take<F: Family>(
    interposed: bool,
    tag: u32,
    tuple: &F::Tuple,
    direction: u8,
    epoch: u32,
) -> Option<Note> {
    if interposed {
        let key = F::with_direction(tuple, direction);
        let left = F::pending().get_ptr_mut(&key)?;
        // SAFETY: a map value, copied at once. If the LRU map reuses it meanwhile, epoch and age decide.
        let note = unsafe { left.read() };
        match pending::taken(&note, epoch) {
            Taken::Stays => {}
            Taken::Spent => {
                let _ = F::pending().remove(&key);
            }
            // SAFETY: a map value; a store of one byte. The worst is that a packet is not noted.
            Taken::BecomesMark => unsafe { (*left).live = NOTE_MARK },
        }
        return Some(note);
    }
    let slot = F::notes().get_ptr_mut(tag::slot(tag)?)?;
    // SAFETY: a value of an array.
    let Slot { note, tuple: noted } = unsafe { slot.read() };
    if note.live != NOTE_LIVE || noted != *tuple || !tag::is_of(tag, note.epoch) {
        return None;
    }
    // SAFETY: a value of an array. What OVS did with one packet teaches one entry.
    unsafe { (*slot).note.live = NOTE_VOID };
    Some(note)
}

/// Whether a packet of this flow that entered as `direction` says may be inside OVS (interposed mode).
#[inline(always)]
pub(super) fn is_inside<F: Family>(tuple: &F::Tuple, direction: u8, terms: &Terms<'_>) -> bool {
    let Some(note) = F::pending().get_ptr(&F::with_direction(tuple, direction)) else { return false };
    // SAFETY: a map value. If the LRU map reuses it meanwhile, one packet teaches nothing, or by its own note.
    pending::may_be_inside(unsafe { &*note }, terms)
}
