//! TCP connections of pods: both directions must have been seen, and both go together.

use aya_ebpf::bindings::BPF_NOEXIST;
use ebpf::{
    layout::flow::{Conn, EgressKey, GATE_TCP, IngressKey},
    layout::reason::Reason,
    packet::SYN,
};

use super::{count, family::Family};

/// Whether both directions of the connection came out of OVS in this epoch. `key`: as the pod sends.
#[inline(always)]
pub(super) fn is_open<F: Family>(key: &EgressKey<F::Tuple>, epoch: u32) -> bool {
    let Some(conn) = F::conns().get_ptr(key) else { return false };
    // SAFETY: a map value. What an LRU map's reuse could show is another connection's state, for one packet, of which
    // the entry itself was learned in this epoch.
    let conn = unsafe { &*conn };
    conn.epoch_out == epoch && conn.epoch_in == epoch && conn.closing == 0
}

/// The state of a connection of which something may be learned, made if it is not there.
#[inline(always)]
pub(super) fn learnable<F: Family>(key: &EgressKey<F::Tuple>, gate: u32) -> Result<*mut Conn, Reason> {
    if gate & GATE_TCP == 0 {
        return Err(Reason::TcpGateClosed);
    }
    let Some(conn) = state::<F>(key) else { return Err(Reason::InsertFailed) };
    // SAFETY: a map value, see `is_open`.
    if unsafe { (*conn).closing } == 0 { Ok(conn) } else { Err(Reason::Closing) }
}

#[inline(always)]
fn state<F: Family>(key: &EgressKey<F::Tuple>) -> Option<*mut Conn> {
    if let Some(conn) = F::conns().get_ptr_mut(key) {
        return Some(conn);
    }
    let _ = F::conns().insert(key, Conn::default(), u64::from(BPF_NOEXIST));
    F::conns().get_ptr_mut(key)
}

/// SYN, FIN or RST: both directions leave the cache. After FIN or RST nothing is learned before the next SYN.
#[inline(never)]
pub(super) fn close<F: Family>(key: &EgressKey<F::Tuple>, flags: u32) -> u32 {
    let Some(conn) = F::conns().get_ptr_mut(key) else { return 0 };
    let closing = u32::from(flags & u32::from(SYN) == 0);
    let _ = F::egress().remove(key);
    let reverse = F::reverse(&key.tuple);
    // SAFETY: a map value, see `is_open`.
    let Conn { vni, option, remote, peer, .. } = unsafe { conn.read() };
    if peer == 0 {
        let _ = F::ingress().remove(&IngressKey { vni, option, remote, tuple: reverse });
    } else {
        let other = EgressKey { ifindex: peer, tuple: reverse };
        let _ = F::egress().remove(&other);
        if let Some(conn) = F::conns().get_ptr_mut(&other) {
            end(conn, closing);
        }
    }
    end(conn, closing);
    count::reason(Reason::Closed);
    1
}

#[inline(always)]
fn end(conn: *mut Conn, closing: u32) {
    // SAFETY: a map value, see `is_open`.
    unsafe {
        (*conn).closing = closing;
        (*conn).epoch_out = 0;
        (*conn).epoch_in = 0;
    }
}
