//! The two IP versions.

use aya_ebpf::maps::{Array, LruHashMap, PerCpuArray};
use ebpf::{
    decide::{
        note::{self, Share},
        tag,
    },
    layout::flow::{Entry, Note, Tuple4, Tuple6},
    layout::maps::{Cursors, Port},
    layout::reason::Reason,
    packet::{self, Flow, Window as _},
};

use super::{
    family::{Family, V4, V6},
    global, maps,
    note::random,
    skb::Front,
};

/// `::ffff:0:0/96`, as words on the wire.
const MAPPED: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

impl Family for V4 {
    type Tuple = Tuple4;

    const TYPE: u16 = packet::IPV4;
    const VERSION: u32 = 4;
    const HEADER: u32 = 20;
    const WORD: u32 = 4;
    const PROTOCOL: u32 = 9;

    #[inline(always)]
    fn flows() -> &'static LruHashMap<Tuple4, Entry<Tuple4>> {
        &maps::FLOWS
    }

    #[inline(always)]
    fn notes() -> &'static Array<Note<Tuple4>> {
        &maps::NOTES
    }

    #[inline(always)]
    fn scratch() -> &'static PerCpuArray<Entry<Tuple4>> {
        &maps::SCRATCH
    }

    #[inline(always)]
    fn parse(front: &Front, at: u32, length: u32) -> Result<Flow<Tuple4>, Reason> {
        packet::ipv4(front, at, length)
    }

    #[inline(always)]
    fn is_bound(tuple: &Tuple4, port: &Port) -> bool {
        tuple.source != 0 && tuple.source == word(&raw const port.ipv4 as *const u32, 0)
    }

    #[inline(always)]
    fn lower_ttl(front: &Front, at: u32, step: u8) {
        let checksum = packet::lowered(front.u16(at + 10), step);
        // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
        unsafe {
            *front.at::<u16>(at + 10) = checksum;
            *front.at::<u8>(at + 8) = front.u8(at + 8).wrapping_sub(step);
        }
    }

    #[inline(always)]
    fn translate(front: &Front, at: u32, entry: &Entry<Tuple4>) {
        let checksum = packet::changed(front.u16(at + 10), entry.address_difference);
        // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
        unsafe {
            *front.at::<u16>(at + 10) = checksum;
            *front.at::<u32>(at + 12) = entry.after.source;
            *front.at::<u32>(at + 16) = entry.after.destination;
            *front.at::<u16>(at + 20) = entry.after.source_port;
            *front.at::<u16>(at + 22) = entry.after.destination_port;
        }
    }

    #[inline(always)]
    fn wide(tuple: &Tuple4) -> Tuple6 {
        let [a, b, c] = MAPPED;
        Tuple6 {
            source: [a, b, c, tuple.source],
            destination: [a, b, c, tuple.destination],
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
            protocol: tuple.protocol,
            side: tuple.side,
            _pad: 0,
        }
    }

    #[inline(always)]
    fn slot(cursors: &mut Cursors, share: Share, segments: u32) -> Option<u32> {
        if segments == 0 {
            Some(note::single(cursors, share, random))
        } else if segments <= ebpf::layout::maps::BLOCK {
            Some(note::aggregate(cursors, share, random))
        } else {
            None
        }
    }

    #[inline(always)]
    fn marked(word: u32) -> Option<u32> {
        tag::slot4(word)
    }

    #[inline(always)]
    fn mark(word: u32, slot: u32) -> u32 {
        tag::marked4(word, slot)
    }

    #[inline(always)]
    fn unmark(word: u32) -> u32 {
        tag::unmarked4(word)
    }

    #[inline(always)]
    fn original(word: u32, original: u32, index: u32) -> u32 {
        let _ = word;
        tag::original4(original, index)
    }

    #[inline(always)]
    fn is_current(key: &Self::Tuple, entry: &Entry<Self::Tuple>, change: u32) -> u32 {
        global::is_current4(key, entry, change)
    }

    #[inline(always)]
    fn scope_refusal(key: &Self::Tuple, value: &Entry<Self::Tuple>, change: u32) -> u32 {
        global::scope_refusal4(key, value, change)
    }

    #[inline(always)]
    fn is_slow(before: &Self::Tuple, after: &Self::Tuple) -> u32 {
        global::is_slow4(before, after)
    }

    #[inline(always)]
    fn change(key: &Self::Tuple, flags: u32, out: u32) -> u32 {
        global::change4(key, flags, out)
    }

    #[inline(always)]
    fn take_slot(payer: u32, urgent: u32, segments: u32, now: u32) -> u32 {
        global::take_slot4(payer, urgent, segments, now)
    }
}

impl Family for V6 {
    type Tuple = Tuple6;

    const TYPE: u16 = packet::IPV6;
    const VERSION: u32 = 6;
    const HEADER: u32 = 40;
    const WORD: u32 = 0;
    const PROTOCOL: u32 = 6;

    #[inline(always)]
    fn flows() -> &'static LruHashMap<Tuple6, Entry<Tuple6>> {
        &maps::FLOWS6
    }

    #[inline(always)]
    fn notes() -> &'static Array<Note<Tuple6>> {
        &maps::NOTES6
    }

    #[inline(always)]
    fn scratch() -> &'static PerCpuArray<Entry<Tuple6>> {
        &maps::SCRATCH6
    }

    #[inline(always)]
    fn parse(front: &Front, at: u32, length: u32) -> Result<Flow<Tuple6>, Reason> {
        packet::ipv6(front, at, length)
    }

    #[inline(always)]
    fn is_bound(tuple: &Tuple6, port: &Port) -> bool {
        let bound = &raw const port.ipv6 as *const u32;
        let mut same = true;
        let mut any = 0;
        let mut at = 0;
        while at < 4 {
            let word = word(bound, at);
            same &= tuple.source[at] == word;
            any |= word;
            at += 1;
        }
        same && any != 0
    }

    #[inline(always)]
    fn lower_ttl(front: &Front, at: u32, step: u8) {
        // No checksum in the header, and the hop limit is not in the pseudo-header (RFC 8200, 8.1).
        // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
        unsafe { *front.at::<u8>(at + 7) = front.u8(at + 7).wrapping_sub(step) }
    }

    #[inline(always)]
    fn translate(front: &Front, at: u32, entry: &Entry<Tuple6>) {
        let mut word = 0;
        while word < 4 {
            // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
            unsafe {
                *front.at::<u32>(at + 8 + word * 4) = entry.after.source[word as usize];
                *front.at::<u32>(at + 24 + word * 4) = entry.after.destination[word as usize];
            }
            word += 1;
        }
        // SAFETY: as above.
        unsafe {
            *front.at::<u16>(at + 40) = entry.after.source_port;
            *front.at::<u16>(at + 42) = entry.after.destination_port;
        }
    }

    #[inline(always)]
    fn wide(tuple: &Tuple6) -> Tuple6 {
        *tuple
    }

    #[inline(always)]
    fn slot(cursors: &mut Cursors, share: Share, segments: u32) -> Option<u32> {
        let _ = segments;
        Some(note::six(cursors, share, random))
    }

    #[inline(always)]
    fn marked(word: u32) -> Option<u32> {
        tag::slot6(word)
    }

    #[inline(always)]
    fn mark(word: u32, slot: u32) -> u32 {
        tag::marked6(word, slot)
    }

    #[inline(always)]
    fn unmark(word: u32) -> u32 {
        tag::unmarked6(word)
    }

    #[inline(always)]
    fn original(word: u32, original: u32, index: u32) -> u32 {
        let _ = index;
        tag::original6(word, original)
    }

    #[inline(always)]
    fn is_current(key: &Self::Tuple, entry: &Entry<Self::Tuple>, change: u32) -> u32 {
        global::is_current6(key, entry, change)
    }

    #[inline(always)]
    fn scope_refusal(key: &Self::Tuple, value: &Entry<Self::Tuple>, change: u32) -> u32 {
        global::scope_refusal6(key, value, change)
    }

    #[inline(always)]
    fn is_slow(before: &Self::Tuple, after: &Self::Tuple) -> u32 {
        global::is_slow6(before, after)
    }

    #[inline(always)]
    fn change(key: &Self::Tuple, flags: u32, out: u32) -> u32 {
        global::change6(key, flags, out)
    }

    #[inline(always)]
    fn take_slot(payer: u32, urgent: u32, segments: u32, now: u32) -> u32 {
        let _ = segments;
        global::take_slot6(payer, urgent, now)
    }
}

/// A word of an address in a map value; those fields are at multiples of four.
#[inline(always)]
fn word(base: *const u32, at: usize) -> u32 {
    // SAFETY: inside the value.
    unsafe { *base.add(at) }
}
