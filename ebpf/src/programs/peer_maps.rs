//! What the maps say of the node at the other end of a tunnel.

use ebpf::{
    decide::peer,
    layout::maps::{Peer, TUNNEL_OTHER, TunnelKey, mapped},
};

use super::{count, maps};

/// OVS has a tunnel to the address.
pub(super) const REMOTE: u32 = 1 << 31;

/// Looks into both maps, and keeps what OVS has a tunnel to: the body of [`global::look_for_peer`].
#[inline(always)]
pub(super) fn look(address: u32, vni: u32, epoch: u32) -> u32 {
    let slot = count::tunnel_slot(&TunnelKey { remote: mapped(address.to_ne_bytes()), vni });
    if !maps::is_remote(address) {
        return slot;
    }
    // What found no slot of its own is counted as such each time.
    if slot != TUNNEL_OTHER
        && let Some(place) = maps::PEERS.get_ptr_mut(peer::slot(address, vni))
    {
        // SAFETY: a value of a per-CPU array, which only this CPU writes.
        unsafe { *place = Peer { epoch, address, vni, slot } };
    }
    slot | REMOTE
}
