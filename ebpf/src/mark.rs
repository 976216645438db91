//! Use of `skb->mark` in direct mode, where a packet keeps its mark on its way through OVS.
//!
//! The upper four bits tell ours from others' marks: kube-proxy has 0x4000 and 0x8000, people's own rules are mostly
//! small numbers.

/// Bits that say whose mark it is.
const KIND_MASK: u32 = 0xf000_0000;
/// A packet with a note.
const KIND_NOTE: u32 = 0x5000_0000;
/// A packet of the fast path on its way through the uplink's egress hook.
pub const FAST: u32 = 0x6fa5_7000;

/// Bits of the epoch that a mark holds.
const EPOCH_MASK: u32 = 0xfff;

/// The mark of a packet whose note is in `slot` (16 bits) and that entered OVS in `epoch`.
#[inline(always)]
pub const fn note(epoch: u32, slot: u32) -> u32 {
    KIND_NOTE | (epoch & EPOCH_MASK) << 16 | (slot & 0xffff)
}

/// The slot of the packet's note. `None`: not our mark.
#[inline(always)]
pub const fn slot(mark: u32) -> Option<u32> {
    if mark & KIND_MASK == KIND_NOTE { Some(mark & 0xffff) } else { None }
}

/// Whether a mark with a note is of this epoch, as far as its twelve lower bits tell: a slot that was used
/// again in a later epoch, while the packet was inside OVS, is told apart by them.
#[inline(always)]
pub const fn is_of(mark: u32, epoch: u32) -> bool {
    mark >> 16 & EPOCH_MASK == epoch & EPOCH_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_gives_back_its_slot_and_its_epoch() {
        for (epoch, number) in [(1, 0), (0xfff, 0xffff), (0x1_2345, 4711)] {
            let mark = note(epoch, number);
            assert_eq!(slot(mark), Some(number));
            assert!(is_of(mark, epoch));
            assert!(!is_of(mark, epoch + 1));
        }
    }

    #[test]
    fn other_peoples_marks_and_that_of_the_fast_path_are_no_notes() {
        for mark in [0, 1, 0x4000, 0x8000, 0x4000_8000, FAST, 0xffff_ffff] {
            assert_eq!(slot(mark), None, "{mark:#x}");
        }
    }
}
