//! TCP connections: what SYN, FIN and RST do to the entries of both directions, and which of them may teach.
//!
//! OVS has each of these segments. A SYN begins another connection, whatever there is of one before it: both entries leave the cache.
//! With ACK it is an answer that OVS lets through to a SYN that it let through, and teaches the entry of its direction like any other
//! packet. The other direction's is taught by the first ACK, and with it the connection is open ([`super::forward::is_open`]). A SYN without ACK
//! teaches nothing, so that a scan leaves nothing. A FIN is the last that its direction has to say: the entry of that direction carries
//! nothing more, and the other one goes on until its own FIN. A RST ends both.

use super::tuple::Tuple;
use crate::{
    layout::flow::{Entry, GATE_TCP, STATE_CLOSING, STATE_WAITING},
    packet::{ACK, FIN, RST, SYN},
};

/// The table of flows, as far as it is needed here.
pub trait Flows<T> {
    /// The entry of a flow.
    fn entry(&mut self, key: &T) -> Option<&mut Entry<T>>;
    /// Takes an entry out.
    fn remove(&mut self, key: &T);
}

/// Whether a segment with these flags, of which SYN, FIN or RST is one, may teach: it accepts a connection.
#[inline(always)]
pub const fn teaches(flags: u8, gate: u32) -> bool {
    flags & (SYN | ACK | FIN | RST) == SYN | ACK && gate & GATE_TCP != 0
}

/// Applies SYN, FIN or RST to the entries of the segment's connection. True if an entry changed. `out`: the segment comes
/// out of OVS, and `key` is of the other direction, as that of its own is not known there.
#[inline(always)]
pub fn change<T: Tuple>(flows: &mut impl Flows<T>, key: &T, flags: u8, out: bool) -> bool {
    let Some(entry) = flows.entry(key) else { return false };
    let partner = entry.partner();
    if flags & SYN != 0 {
        flows.remove(key);
        flows.remove(&partner);
        return true;
    }
    if flags & RST != 0 {
        let one = breaks(flows, key);
        let other = breaks(flows, &partner);
        return one || other;
    }
    if out { flows.entry(&partner).is_some_and(ends) } else { ends(entry) }
}

/// The direction of an entry ends. It still says that the direction was seen in its epoch.
#[inline(always)]
pub const fn ends<T>(entry: &mut Entry<T>) -> bool {
    let open = entry.state != STATE_CLOSING;
    entry.state = STATE_CLOSING;
    open
}

/// The connection of an entry ends. What never carried a packet leaves, so that a scan leaves nothing.
#[inline(always)]
fn breaks<T: Tuple>(flows: &mut impl Flows<T>, key: &T) -> bool {
    let Some(entry) = flows.entry(key) else { return false };
    if entry.state == STATE_WAITING {
        flows.remove(key);
        return true;
    }
    let valid = entry.epoch != 0;
    entry.state = STATE_CLOSING;
    entry.epoch = 0;
    valid
}
