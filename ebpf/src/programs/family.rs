//! What the two IP versions are to the rest: their maps, and what differs in their headers.

use aya_ebpf::maps::{Array, LruHashMap, PerCpuArray};
use ebpf::decide::{note::Share, tuple::Tuple};
use ebpf::{
    layout::flow::{Entry, Note, Print, Tuple6},
    layout::maps::{Cursors, Port},
    layout::reason::Reason,
    packet::{self, Flow, Window as _},
};

use super::skb::Front;

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
    fn slot(cursors: &mut Cursors, share: Share, segments: u32) -> Option<u32>;
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
