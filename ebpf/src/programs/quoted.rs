//! What ICMP errors quote. OVN makes them of packets inside OVS, which have the numbers of their notes there: a port or a service that
//! rejects, hops that have ended, a packet that is too long. Who gets the error must find in it what the packet's sender wrote.

use ebpf::{
    decide::tag,
    layout::flow::{NOTE_VOID, Note},
    packet::{
        Packet as _,
        quoted::{is_of4, is_of6, quoted4, quoted6},
    },
};

use super::{
    family::{Family, V4, V6},
    note,
    skb::Skb,
};

/// The note of a quoted packet with this word, and the index of the segment that it is.
#[inline(always)]
fn noted<F: Family>(word: u32) -> Option<(&'static Note<F::Tuple>, u32)> {
    let slot = F::marked(word)?;
    let (slot, index) = if F::VERSION == 4 { tag::block(slot) } else { (slot, 0) };
    // SAFETY: a value of an array.
    let note = unsafe { &*F::notes().get_ptr(slot)? };
    (note.state != NOTE_VOID).then_some((note, index))
}

/// Bytes from the IP header on of the packet that a note is of; 0 for a segment, which may have any number.
#[inline(always)]
const fn length<T>(note: &Note<T>) -> u32 {
    if note.segment == 0 { note.print.length } else { 0 }
}

/// Gives the packet that an ICMP error quotes back what it had, if its note is still there. `ip`: offset of the error's IPv4 header.
#[inline(always)]
pub(super) fn restore4(skb: &Skb, ip: u32) {
    let Some(at) = quoted4(skb, ip) else { return };
    let Some(word) = skb.read::<4>(at + V4::WORD).map(u32::from_ne_bytes) else { return };
    let Some((note, index)) = noted::<V4>(word) else { return };
    if is_of4(skb, at, &note.tuple, length(note)) {
        // The header's own checksum changes the other way, so that the error's stays right.
        note::write::<V4>(skb, at, word, V4::original(word, note.original, index));
    }
}

/// [`restore4`] for IPv6.
#[inline(always)]
pub(super) fn restore6(skb: &Skb, ip: u32) {
    let Some(at) = quoted6(skb, ip) else { return };
    let Some(word) = skb.read::<4>(at + V6::WORD).map(u32::from_ne_bytes) else { return };
    let Some((note, index)) = noted::<V6>(word) else { return };
    if !is_of6(skb, at, &note.tuple, length(note)) {
        return;
    }
    let after = V6::original(word, note.original, index);
    let Some(before) = skb.read::<2>(ip + 42).map(u16::from_ne_bytes) else { return };
    note::write::<V6>(skb, at, word, after);
    skb.store(ip + 42, &tag::checksum4(before, word, after).to_ne_bytes(), true);
}
