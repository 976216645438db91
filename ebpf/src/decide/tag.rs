//! Use of `skb->priority` in direct mode, where a packet keeps it on its way through OVS.
//!
//! Not `skb->mark`, which would do as well: the kernel's tunnels look their route up anew for every packet that has a mark
//! (`ip_tunnel_dst_cache_usable` in include/net/ip_tunnels.h). Nothing between the programs looks at the priority: queueing
//! comes after the uplink's egress hook, where ours is taken away, and a veth sets it to 0 when a packet crosses it.
//!
//! The upper four bits tell tags of the programs from priorities of others.

/// Bits that say whose the priority is, and for what.
const KIND_MASK: u32 = 0xf000_0000;
/// A packet with a note.
const KIND_NOTE: u32 = 0x5000_0000;
/// A packet of the fast path on its way through the uplink's egress hook.
pub const FAST: u32 = 0x6fa5_7000;

/// Bits of the epoch that a tag holds.
const EPOCH_MASK: u32 = 0xfff;

/// The tag of a packet whose note is in `slot` (16 bits) and that entered OVS in `epoch`.
#[inline(always)]
pub const fn note(epoch: u32, slot: u32) -> u32 {
    KIND_NOTE | (epoch & EPOCH_MASK) << 16 | (slot & 0xffff)
}

/// The slot of the packet's note. `None`: the priority is no tag of a note.
#[inline(always)]
pub const fn slot(tag: u32) -> Option<u32> {
    if tag & KIND_MASK == KIND_NOTE { Some(tag & 0xffff) } else { None }
}

/// Whether a tag with a note is of this epoch, as far as its twelve lower bits tell: a slot that was used
/// again in a later epoch, while the packet was inside OVS, is told apart by them.
#[inline(always)]
pub const fn is_of(tag: u32, epoch: u32) -> bool {
    tag >> 16 & EPOCH_MASK == epoch & EPOCH_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_gives_back_its_slot_and_its_epoch() {
        for (epoch, number) in [(1, 0), (0xfff, 0xffff), (0x1_2345, 4711)] {
            let tag = note(epoch, number);
            assert_eq!(slot(tag), Some(number));
            assert!(is_of(tag, epoch));
            assert!(!is_of(tag, epoch + 1));
        }
    }

    #[test]
    fn other_peoples_priorities_and_the_tag_of_the_fast_path_are_no_notes() {
        for tag in [0, 1, 7, 0x8001_0001, FAST, 0xffff_ffff] {
            assert_eq!(slot(tag), None, "{tag:#x}");
        }
    }
}
