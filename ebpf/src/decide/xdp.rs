//! What the XDP program on the uplink does by itself. It runs before the kernel has made a buffer of a packet, and carries only what
//! comes by the uplink and leaves by it. It writes nothing into an entry but what it counts, and answers no packet otherwise than the TC
//! programs: what is not certain here is theirs, which see every packet that is passed on as if this program did not exist.

use super::{
    Terms,
    age::{self, Due, Times},
    forward::{Facts, different},
    tuple::Tuple,
};
use crate::layout::{
    flow::{
        Entry, GATE_FORWARD, GATE_HOLD, GATE_MORE_REMOTES, HEADER_LEN, SIDE_OUTSIDE, SIDE_TUNNEL,
        STATE_ACTIVE,
    },
    maps::Config,
};

/// Bytes of the shortest frame of Ethernet without its checksum (IEEE 802.3, 3.2.8): a driver fills up shorter ones that the kernel
/// sends, and not every one does so for XDP.
pub const SHORTEST: u32 = 60;

/// Where a packet in front of the XDP program comes from and leaves to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// True for a packet that comes out of a tunnel.
    pub tunnel: bool,
    /// Bytes of the frame, with the outer headers that it came with.
    pub length: u32,
    /// Interface at which it is.
    pub uplink: u32,
}

/// Whether an entry sends a packet back out of the uplink now: it is current without a look at scopes or at the other direction, its
/// refresh is not due, and it leads out of the uplink, but not from a tunnel into a tunnel. Whatever else is true of the packet is for the
/// TC programs, the deadline above all: the packet that is sent to OVS must be theirs.
#[inline(always)]
pub fn carries<T: Tuple>(entry: &Entry<T>, packet: &Facts, ends: Ends, terms: &Terms<'_>) -> bool {
    let other = (entry.epoch ^ terms.epoch)
        | (entry.checked ^ terms.change)
        | different(entry.way, packet.way)
        | different(entry.macs, packet.macs)
        | u32::from(entry.dscp ^ packet.dscp)
        | (entry.target ^ ends.uplink);
    if other != 0 || entry.state != STATE_ACTIVE {
        return false;
    }
    let side = entry.after.side();
    let out = if side == SIDE_TUNNEL { !ends.tunnel } else { side == SIDE_OUTSIDE };
    let headers = if ends.tunnel { HEADER_LEN - 14 } else { 0 };
    let long_enough = side == SIDE_TUNNEL || ends.length >= SHORTEST + headers;
    out && long_enough && u32::from(packet.ttl) > u32::from(entry.ttl_step) + 1 && is_fresh(entry, terms)
}

/// Whether the entry's refresh is not due, or OVS is away.
#[inline(always)]
fn is_fresh<T>(entry: &Entry<T>, terms: &Terms<'_>) -> bool {
    let Terms { config, gate, now, .. } = *terms;
    let Config { slack, overdue, refresh, hold_until, .. } = *config;
    let times = Times { slack, overdue, early: age::early(refresh) };
    match age::due(now, entry.deadline, entry.probing, true, times) {
        Due::Fresh => true,
        _ => gate & GATE_HOLD != 0 && age::holds(now, hold_until),
    }
}

/// Whether the addresses that OVS has tunnels to are known well enough to drop packets from others: the fast path is open, so that
/// changes are seen, the map has room for all of them, and the agent was alive lately. `alive`: see [`super::learn::is_agent_alive`].
#[inline(always)]
pub const fn may_drop(gate: u32, alive: bool) -> bool {
    gate & (GATE_FORWARD | GATE_HOLD | GATE_MORE_REMOTES) == GATE_FORWARD && alive
}
