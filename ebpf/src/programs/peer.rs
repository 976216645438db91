//! What is known of the node at the other end of a tunnel, see [`ebpf::decide::peer`].

use ebpf::decide::peer;

use super::{global, maps, peer_maps::REMOTE};

/// The slot of the tunnel's counters, and [`REMOTE`].
#[derive(Clone, Copy)]
pub(super) struct Found(u32);

impl Found {
    /// Slot in `TUNNEL_STATS`.
    #[inline(always)]
    pub(super) const fn slot(self) -> u32 {
        self.0 & !REMOTE
    }

    /// Whether OVS has a tunnel to the address.
    #[inline(always)]
    pub(super) const fn is_remote(self) -> bool {
        self.0 & REMOTE != 0
    }
}

/// Looks for the node with this outer address, in wire order. `epoch`: the node's, read before.
#[inline(always)]
pub(super) fn find(address: u32, vni: u32, epoch: u32) -> Found {
    if let Some(kept) = maps::PEERS.get_ptr(peer::slot(address, vni))
        // SAFETY: a value of a per-CPU array, which only this CPU writes.
        && let Some(slot) = peer::known(unsafe { &*kept }, address, vni, epoch)
    {
        return Found(slot | REMOTE);
    }
    Found(global::look_for_peer(address, vni, epoch))
}
