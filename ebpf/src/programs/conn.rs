//! The two entries of a TCP connection; what they mean is decided in [`ebpf::decide::forward`].

use core::marker::PhantomData;

use ebpf::{
    decide::{Terms, connection, forward, scope, service},
    layout::{flow::Entry, reason::Reason},
};

use super::{count, family::Family, maps};

/// Whether both directions of the connection came out of OVS in this epoch. `entry`: of this direction, by `key`.
#[inline(always)]
pub(super) fn is_open<F: Family>(key: &F::Tuple, entry: &Entry<F::Tuple>, terms: &Terms<'_>) -> bool {
    let other = entry.partner();
    // SAFETY: a map value. What an LRU map's reuse could show is another connection's, for one packet, and it would have to be of
    // the same flow.
    let partner = F::flows().get_ptr(&other).map(|partner| unsafe { &*partner });
    let change = terms.change;
    forward::is_open(key, partner, terms.epoch, |partner| is_current::<F>(&other, partner, change) != 0)
}

/// Whether nothing that concerns an entry has changed. Asked of few packets: a function of its own, for the stack.
#[inline(never)]
pub(super) fn is_current<F: Family>(key: &F::Tuple, entry: &Entry<F::Tuple>, change: u32) -> u32 {
    scope::is_current(key, entry, change, maps::scope).into()
}

/// Why nothing may be learned into an entry, as a reason's number; 0: it may. A function of its own, too.
#[inline(never)]
pub(super) fn scope_refusal<F: Family>(key: &F::Tuple, value: &Entry<F::Tuple>, change: u32) -> u32 {
    match scope::may_learn(key, value, change, maps::scope) {
        Ok(()) => 0,
        Err(Reason::ScopeClosed) => 1,
        Err(_) => 2,
    }
}

/// The entry of a flow is not used again.
#[inline(always)]
pub(super) fn forget<F: Family>(key: &F::Tuple) {
    if let Some(entry) = F::flows().get_ptr_mut(key) {
        // SAFETY: a map value, see `is_open`.
        forward::forget(unsafe { &mut *entry });
    }
}

/// Whether a flow is of a service that is kept off the cache. Asked of few packets: a function of its own, for the stack.
#[inline(never)]
pub(super) fn is_slow<F: Family>(before: &F::Tuple, after: &F::Tuple) -> u32 {
    service::is_slow(before, after, maps::is_slow_service).into()
}

/// What SYN, FIN or RST does to the connection's entries. `key`: of one of them, of the segment's own direction or, if `out` is not 0, of
/// the other one.
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "eight flags")]
pub(super) fn change<F: Family>(key: &F::Tuple, flags: u32, out: u32) -> u32 {
    let changed = connection::change(&mut Table::<F>(PhantomData), key, flags as u8, out != 0);
    if changed {
        count::reason(Reason::Closed);
    }
    changed.into()
}

/// The table of flows.
struct Table<F>(PhantomData<F>);

impl<F: Family> connection::Flows<F::Tuple> for Table<F> {
    #[inline(always)]
    fn entry(&mut self, key: &F::Tuple) -> Option<&mut Entry<F::Tuple>> {
        // SAFETY: a map value, see `is_open`.
        F::flows().get_ptr_mut(key).map(|entry| unsafe { &mut *entry })
    }

    #[inline(always)]
    fn remove(&mut self, key: &F::Tuple) {
        let _ = F::flows().remove(key);
    }
}
