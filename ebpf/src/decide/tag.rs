//! How a packet carries the number of its note through OVS.
//!
//! **Direct mode**: in `skb->priority`, which a packet keeps on its way through OVS's kernel datapath. Not `skb->mark`, which would
//! do as well: the kernel's tunnels look up the route again for every packet that has a mark (`ip_tunnel_dst_cache_usable` in
//! include/net/ip_tunnels.h). Nothing between the programs looks at the priority: queueing comes after the uplink's egress hook,
//! where ours is taken away, and a veth sets it to 0 when a packet crosses it. The upper four bits tell tags of the programs from
//! priorities of others.
//!
//! **Interposed mode**: in the packet. IPv4: the slot is the identification, and the reserved flag says so. OVS neither matches nor
//! changes either. IPv6: the slot is part of the flow label, of which the 64th part that begins at [`LABELS`] is used. At the exit
//! the packet gets back what it had.

use crate::{layout::maps::SINGLE_NOTES, packet::replaced};

/// Bits that say whose the priority is, and for what.
const KIND_MASK: u32 = 0xf000_0000;
/// A packet with a note.
const KIND_NOTE: u32 = 0x5000_0000;
/// A packet of the fast path on its way through an egress hook. As `skb->mark`: on its way through the ingress hook of an interface of
/// the node, as a redirect to there sets the priority to 0.
pub const FAST: u32 = 0x6fa5_7000;

/// The tag of a packet whose note is in `slot` (16 bits), and the number of times that the slot was used until then. As a slot is used
/// again after a second at the earliest, no two packets of the same minutes have one tag.
#[inline(always)]
pub const fn note(generation: u8, slot: u32) -> u32 {
    KIND_NOTE | (generation as u32) << 16 | (slot & 0xffff)
}

/// The number of times that the slot was used, of a tag of a note.
#[expect(clippy::cast_possible_truncation, reason = "the eight bits above the slot")]
#[inline(always)]
pub const fn generation(tag: u32) -> u8 {
    (tag >> 16) as u8
}

/// The slot of the packet's note. `None`: the priority is no tag of a note.
#[inline(always)]
pub const fn slot(tag: u32) -> Option<u32> {
    if tag & KIND_MASK == KIND_NOTE { Some(tag & 0xffff) } else { None }
}

/// The reserved flag of IPv4 (RFC 791, 3.1: "must be zero"), in the word of identification, flags and fragment offset as a number.
const RESERVED: u32 = 0x8000;

/// The slot of a marked IPv4 packet. `word`: identification, flags and fragment offset, in wire order.
#[inline(always)]
pub const fn slot4(word: u32) -> Option<u32> {
    let word = u32::from_be(word);
    if word & RESERVED != 0 { Some(word >> 16) } else { None }
}

/// The word of a packet that carries this slot, in wire order.
#[inline(always)]
pub const fn marked4(word: u32, slot: u32) -> u32 {
    ((slot << 16) | (u32::from_be(word) & 0xffff) | RESERVED).to_be()
}

/// The word without a mark.
#[inline(always)]
pub const fn unmarked4(word: u32) -> u32 {
    word & !RESERVED.to_be()
}

/// The word that the segment with this index had, whose packet had `original` at entry. The kernel counts the identification on
/// from segment to segment.
#[inline(always)]
pub const fn original4(original: u32, index: u32) -> u32 {
    let word = u32::from_be(original);
    ((word & 0xffff_0000).wrapping_add(index << 16) | (word & 0xffff)).to_be()
}

/// The checksum of a header in which this word changes.
#[inline(always)]
pub const fn checksum4(checksum: u16, before: u32, after: u32) -> u16 {
    replaced(checksum, before, after)
}

/// Slot of a block's first segment, and the index of the segment. Slots of single packets have index 0.
#[inline(always)]
pub const fn block(slot: u32) -> (u32, u32) {
    use crate::layout::maps::BLOCK;
    if slot < SINGLE_NOTES { (slot, 0) } else { (slot & !(BLOCK - 1), slot & (BLOCK - 1)) }
}

/// The first flow label that is a tag: the last 16,384 are.
pub const LABELS: u32 = 0xfc000;

/// The slot of a marked IPv6 packet. `word`: version, traffic class and flow label, in wire order.
#[inline(always)]
pub const fn slot6(word: u32) -> Option<u32> {
    let label = u32::from_be(word) & 0xf_ffff;
    if label >= LABELS { Some(label - LABELS) } else { None }
}

/// The word of a packet that carries this slot, in wire order.
#[inline(always)]
pub const fn marked6(word: u32, slot: u32) -> u32 {
    ((u32::from_be(word) & !0xf_ffff) | LABELS | (slot & 0x3fff)).to_be()
}

/// The word with a label that is no tag, the same for all packets of the flow.
#[inline(always)]
pub const fn unmarked6(word: u32) -> u32 {
    word & !0x8_0000_u32.to_be()
}

/// The word with the label of `original`; the rest is the packet's.
#[inline(always)]
pub const fn original6(word: u32, original: u32) -> u32 {
    let label = 0xf_ffff_u32.to_be();
    (word & !label) | (original & label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tag_gives_back_its_slot() {
        for (times, number) in [(1, 0), (0xff, 0xffff), (0x45, 4711)] {
            let tag = note(times, number);
            assert_eq!((slot(tag), generation(tag)), (Some(number), times));
        }
    }

    #[test]
    fn priorities_of_others_and_the_tag_of_the_fast_path_are_no_notes() {
        for tag in [0, 1, 7, 0x8001_0001, FAST, 0xffff_ffff] {
            assert_eq!(slot(tag), None, "{tag:#x}");
        }
    }

    #[test]
    fn a_segment_of_a_block_tells_its_first_slot_and_its_index() {
        assert_eq!(block(0x7fff), (0x7fff, 0));
        assert_eq!(block(0x8000), (0x8000, 0));
        assert_eq!(block(0x8000 + 64 + 5), (0x8040, 5));
    }

    proptest! {
        #[test]
        fn a_mark_of_ipv4_gives_back_slot_and_word(bytes in any::<[u8; 4]>(), slot in 0_u32..0x1_0000) {
            let word = unmarked4(u32::from_ne_bytes(bytes));
            let marked = marked4(word, slot);
            prop_assert_eq!(slot4(word), None);
            prop_assert_eq!(slot4(marked), Some(slot));
            prop_assert_eq!(original4(word, 0), word);
            // Flags and offset are the packet's own.
            prop_assert_eq!(unmarked4(marked).to_ne_bytes()[2..].to_vec(), word.to_ne_bytes()[2..].to_vec());
        }

        #[test]
        fn a_mark_of_ipv6_gives_back_slot_and_word(bytes in any::<[u8; 4]>(), slot in 0_u32..0x4000) {
            let word = u32::from_ne_bytes(bytes);
            let marked = marked6(word, slot);
            prop_assert_eq!(slot6(marked), Some(slot));
            prop_assert_eq!(original6(marked, word), word);
            prop_assert_eq!(slot6(unmarked6(marked)), None);
        }

        #[test]
        fn the_identification_counts_on_and_wraps(id in any::<u16>(), index in 0_u16..64) {
            let word = |id: u16| u32::from_ne_bytes([id.to_be_bytes()[0], id.to_be_bytes()[1], 0x40, 0]);
            prop_assert_eq!(original4(word(id), index.into()), word(id.wrapping_add(index)));
        }
    }
}
