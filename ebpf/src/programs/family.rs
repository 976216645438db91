//! The two IP versions: their maps, and what differs in their headers.

use aya_ebpf::maps::{Array, LruHashMap, PerCpuArray};
use ebpf::decide::tuple::Tuple;
use ebpf::{
    decide::{note, tag},
    layout::flow::{Entry, Note, Print, Tuple4, Tuple6},
    layout::maps::{Cursors, Port},
    layout::reason::Reason,
    packet::{self, Flow, Window as _},
};

use super::{global, maps, skb::Front};

/// An IP version.
pub(super) trait Family {
    type Tuple: Tuple + 'static;

    /// EtherType.
    const TYPE: u16;
    /// 4 or 6.
    const VERSION: u32;
    /// Length of the header.
    const HEADER: u32;
    /// Offset in the header of the word that carries a mark.
    const WORD: u32;
    /// Offset in the header of the protocol.
    const PROTOCOL: u32;

    fn flows() -> &'static LruHashMap<Self::Tuple, Entry<Self::Tuple>>;
    fn notes() -> &'static Array<Note<Self::Tuple>>;
    fn scratch() -> &'static PerCpuArray<Entry<Self::Tuple>>;

    /// Whether the packet whose IP header is at `at` is UDP right behind that header.
    #[inline(always)]
    fn is_udp(front: &Front, at: u32) -> bool {
        front.has(at + Self::HEADER) && front.u8(at + Self::PROTOCOL) == packet::UDP
    }
    /// Reads the packet whose IP header is at `at`.
    fn parse(front: &Front, at: u32, length: u32) -> Result<Flow<Self::Tuple>, Reason>;
    /// Whether the source address is the one bound to the port.
    fn is_bound(tuple: &Self::Tuple, port: &Port) -> bool;
    /// Lowers TTL or hop limit of the header at `at`, whose first 20 bytes are known to be there.
    fn lower_ttl(front: &Front, at: u32, step: u8);
    /// Puts in addresses and ports of `entry`; the header at `at` and the first four bytes behind it are known to be there. The
    /// checksum of TCP or UDP is left as it is.
    fn translate(front: &Front, at: u32, entry: &Entry<Self::Tuple>);
    /// For messages: addresses in mapped form.
    fn wide(tuple: &Self::Tuple) -> Tuple6;

    /// A slot for a packet, with `segments` in all if it is an aggregate that OVS gets in pieces. `None`: they are too many.
    fn slot(cursors: &mut Cursors, cpu: u32, cpu_shift: u32, urgent: bool, segments: u32) -> Option<u32>;
    /// The slot of a marked packet, from the word that carries it.
    fn marked(word: u32) -> Option<u32>;
    /// The word with a slot.
    fn mark(word: u32, slot: u32) -> u32;
    /// The word without a mark.
    fn unmark(word: u32) -> u32;
    /// The word of the packet at entry, for the segment with this index.
    fn original(word: u32, original: u32, index: u32) -> u32;

    // What these do is said in `global`.
    fn is_current(key: &Self::Tuple, entry: &Entry<Self::Tuple>, change: u32) -> u32;
    fn scope_refusal(key: &Self::Tuple, value: &Entry<Self::Tuple>, change: u32) -> u32;
    fn is_slow(before: &Self::Tuple, after: &Self::Tuple) -> u32;
    fn change(key: &Self::Tuple, flags: u32, out: u32) -> u32;
    fn take_slot(payer: u32, urgent: u32, segments: u32, now: u32) -> u32;

    /// What tells the packet from others.
    #[inline(always)]
    fn print(front: &Front, at: u32, flow: &Flow<Self::Tuple>) -> Print {
        packet::print(front, at + Self::HEADER, flow.tuple.protocol(), flow.length)
    }
}

pub(super) struct V4;
pub(super) struct V6;

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
    fn slot(cursors: &mut Cursors, cpu: u32, cpu_shift: u32, urgent: bool, segments: u32) -> Option<u32> {
        if segments == 0 {
            Some(note::single(cursors, cpu, cpu_shift, urgent))
        } else if segments <= ebpf::layout::maps::BLOCK {
            Some(note::aggregate(cursors, cpu, cpu_shift, urgent))
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
    fn slot(cursors: &mut Cursors, cpu: u32, cpu_shift: u32, urgent: bool, segments: u32) -> Option<u32> {
        let _ = segments;
        Some(note::six(cursors, cpu, cpu_shift, urgent))
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
