//! The two entries of a TCP connection; what they mean is decided in [`ebpf::decide::forward`].

use core::marker::PhantomData;

use ebpf::{
    decide::{Terms, connection, forward},
    layout::{flow::Entry, reason::Reason},
};

use super::{count, family::Family};

/// Whether both directions of the connection came out of OVS in this epoch. `entry`: of this direction, by `key`.
#[inline(always)]
pub(super) fn is_open<F: Family>(key: &F::Tuple, entry: &Entry<F::Tuple>, terms: &Terms<'_>) -> bool {
    let other = entry.partner();
    // SAFETY: a map value. What an LRU map's reuse could show is another connection's, for one packet, and it would have to be of
    // the same flow.
    let partner = F::flows().get_ptr(&other).map(|partner| unsafe { &*partner });
    let change = terms.change;
    forward::is_open(key, partner, terms.epoch, |partner| is_current::<F>(&other, partner, change))
}

/// Whether nothing that concerns an entry has changed.
#[inline(always)]
pub(super) fn is_current<F: Family>(key: &F::Tuple, entry: &Entry<F::Tuple>, change: u32) -> bool {
    F::is_current(key, entry, change) != 0
}

/// Whether something may be learned into an entry.
///
/// # Errors
/// What concerns it changes just now, or has changed.
#[inline(always)]
pub(super) fn may_learn<F: Family>(
    key: &F::Tuple,
    value: &Entry<F::Tuple>,
    change: u32,
) -> Result<(), Reason> {
    match F::scope_refusal(key, value, change) {
        0 => Ok(()),
        1 => Err(Reason::ScopeClosed),
        _ => Err(Reason::NoteOldScope),
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

/// Whether a flow is of a service that is kept off the cache.
#[inline(always)]
pub(super) fn is_slow<F: Family>(before: &F::Tuple, after: &F::Tuple) -> bool {
    F::is_slow(before, after) != 0
}

/// What SYN, FIN or RST does to the connection's entries. `key`: of one of them, of the segment's own direction or, if `out`, of the
/// other one.
#[inline(always)]
pub(super) fn change<F: Family>(key: &F::Tuple, flags: u8, out: bool) {
    F::change(key, flags.into(), out.into());
}

/// The body of [`Family::change`].
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "eight flags")]
pub(super) fn change_entries<F: Family>(key: &F::Tuple, flags: u32, out: u32) -> u32 {
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
