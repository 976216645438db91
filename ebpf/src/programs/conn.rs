//! TCP connections of pods in the map `CONNS`; what they mean is decided in [`ebpf::decide::conn`].

use aya_ebpf::bindings::BPF_NOEXIST;
use ebpf::{
    decide::{Terms, conn},
    layout::{
        flow::{Conn, EgressKey, IngressKey},
        reason::Reason,
    },
};

use super::{count, family::Family};

/// Whether both directions of the connection came out of OVS in this epoch. `key`: as the pod sends.
#[inline(always)]
pub(super) fn is_open<F: Family>(key: &EgressKey<F::Tuple>, epoch: u32) -> bool {
    let Some(state) = F::conns().get_ptr(key) else { return false };
    // SAFETY: a map value. What an LRU map's reuse could show is another connection's state, for one packet, of which
    // the entry itself was learned in this epoch.
    conn::is_open(unsafe { &*state }, epoch)
}

/// The state of a connection of which something may be learned, made if it is not there.
#[inline(always)]
pub(super) fn learnable<F: Family>(
    key: &EgressKey<F::Tuple>,
    terms: &Terms<'_>,
) -> Result<&'static mut Conn, Reason> {
    conn::may_learn(terms.gate)?;
    let Some(state) = state::<F>(key) else { return Err(Reason::InsertFailed) };
    // SAFETY: a map value, see `is_open`.
    let state = unsafe { &mut *state };
    conn::is_learnable(state)?;
    Ok(state)
}

#[inline(always)]
fn state<F: Family>(key: &EgressKey<F::Tuple>) -> Option<*mut Conn> {
    if let Some(state) = F::conns().get_ptr_mut(key) {
        return Some(state);
    }
    let _ = F::conns().insert(key, Conn::default(), u64::from(BPF_NOEXIST));
    F::conns().get_ptr_mut(key)
}

/// SYN, FIN or RST: both directions leave the cache.
#[inline(never)]
pub(super) fn close<F: Family>(key: &EgressKey<F::Tuple>, flags: u32) -> u32 {
    let Some(state) = F::conns().get_ptr_mut(key) else { return 0 };
    // SAFETY: a map value, see `is_open`.
    let state = unsafe { &mut *state };
    let _ = F::egress().remove(key);
    let reverse = F::reverse(&key.tuple);
    let Conn { vni, option, remote, peer, .. } = *state;
    if peer == 0 {
        let _ = F::ingress().remove(&IngressKey { vni, option, remote, tuple: reverse });
    } else {
        let other = EgressKey { ifindex: peer, tuple: reverse };
        let _ = F::egress().remove(&other);
        if let Some(other) = F::conns().get_ptr_mut(&other) {
            // SAFETY: a map value, see `is_open`.
            conn::close(unsafe { &mut *other }, flags);
        }
    }
    conn::close(state, flags);
    count::reason(Reason::Closed);
    1
}
