//! Nodes at the other ends of tunnels, as a CPU met them last: whether OVS has a tunnel to an address, and where its packets are counted, are
//! two looks into hash maps, which each packet on the slow path would take twice on its way. Most packets are of few peers.
//!
//! The map `PEERS` has a slot for each hash of an address and a VNI. Only what OVS has a tunnel to is kept, in that epoch. The agent moves the epoch after it has
//! taken an address out of `REMOTES`, or a tunnel out of `TUNNELS`, so that what is kept of either ends with it.

use crate::layout::maps::{PEERS, Peer};

/// An odd number with bits all over, the golden ratio's.
const GOLDEN: u32 = 0x9e37_79b1;

/// The slot of a peer. `address`: in wire order, in which nodes of a subnet differ in the upper bytes.
#[inline(always)]
pub const fn slot(address: u32, vni: u32) -> u32 {
    (address ^ vni.wrapping_mul(GOLDEN)).wrapping_mul(GOLDEN).rotate_left(16).wrapping_mul(GOLDEN)
        >> (32 - PEERS.ilog2())
}

/// The slot of the peer's counters, if it is the one that is `kept`. `epoch`: the node's, as it was before this look.
#[inline(always)]
pub const fn known(kept: &Peer, address: u32, vni: u32, epoch: u32) -> Option<u32> {
    let other = (kept.epoch ^ epoch) | (kept.address ^ address) | (kept.vni ^ vni);
    if other == 0 && epoch != 0 { Some(kept.slot) } else { None }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_peer_is_known_in_the_epoch_in_which_it_was_looked_for() {
        let kept = Peer { epoch: 7, address: 1, vni: 2, slot: 9 };
        assert_eq!(known(&kept, 1, 2, 7), Some(9));
        for (address, vni, epoch) in [(3, 2, 7), (1, 3, 7), (1, 2, 8), (1, 2, 0)] {
            assert_eq!(known(&kept, address, vni, epoch), None);
        }
        // A slot that was never written.
        assert_eq!(known(&Peer::default(), 0, 0, 0), None);
    }

    #[test]
    fn nodes_in_a_row_and_datapaths_in_a_row_have_slots_of_their_own() {
        for vnis in [1, 2, 4] {
            let mut slots = BTreeSet::new();
            for node in 0..1_024 / vnis {
                for vni in 0..vnis {
                    let slot = slot((0xac12_0000_u32 + node).to_be(), 5 + vni);
                    assert!(slot < PEERS);
                    slots.insert(slot);
                }
            }
            // Of 1,024 random ones 806 different ones are expected.
            assert!(slots.len() > 700, "{vnis}: {}", slots.len());
        }
    }
}
