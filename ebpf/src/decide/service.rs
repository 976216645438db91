//! Services that are kept off the flow cache, see [`ServiceKey`].
//!
//! What OVS does with a packet says which service it is of: before OVS its destination is the service's address, after OVS its source.
//! So both directions are recognised where they are learned, and the entry that is made of them is one that carries nothing
//! ([`STATE_SLOW`]). A packet that finds it goes to OVS, without a note. Packets of other services are looked at no more than before.

use super::{Terms, tuple::Tuple};
use crate::layout::{
    flow::{Entry, GATE_SERVICES, KEPT_OFF, STATE_SLOW},
    reason::Reason,
    service::ServiceKey,
};

/// Whether a flow is of a service that is kept off the cache. `before`: as it enters OVS; `after`: as it comes out; `has`: whether
/// `SLOW_SERVICES` has a key.
#[inline(always)]
pub fn is_slow<T: Tuple>(before: &T, after: &T, has: impl Fn(&ServiceKey) -> bool) -> bool {
    has(&before.destination_key()) || has(&after.source_key())
}

/// Makes an entry that is about to be saved one that carries nothing, if its service is kept off the cache. `is_slow` is asked only if
/// some service is.
#[inline(always)]
pub fn keep_off<T>(value: &mut Entry<T>, gate: u32, is_slow: impl FnOnce() -> bool) {
    if gate & GATE_SERVICES != 0 && is_slow() {
        value.state = STATE_SLOW;
        value.translated |= KEPT_OFF;
    }
}

/// Whether an entry was made while its service was kept off the cache.
#[inline(always)]
pub const fn is_kept_off<T>(entry: &Entry<T>) -> bool {
    entry.translated & KEPT_OFF != 0
}

/// Whether both entries are of the same path. If not, neither confirms the other.
#[inline(always)]
pub const fn same_path<T>(one: &Entry<T>, other: &Entry<T>) -> bool {
    is_kept_off(one) == is_kept_off(other)
}

/// What becomes of a packet that finds an entry in [`STATE_SLOW`]: it goes to OVS. Past the deadline it is noted too, to make another
/// entry, so that one that was made while the service came back to the cache is not the last word.
#[inline(always)]
pub const fn slow<T>(entry: &Entry<T>, terms: &Terms<'_>) -> Reason {
    let late = terms.now.wrapping_sub(entry.deadline).cast_signed();
    if late >= 0 { Reason::Overdue } else { Reason::ServiceSlow }
}

/// An entry that is made in place of `old`, of the same flow, goes on with its time and counts, if it gives the same answer by the same
/// path. So what a flow carried is not lost with an epoch.
#[inline(always)]
pub fn go_on<T: Tuple>(value: &mut Entry<T>, old: &Entry<T>) {
    if value.after.is(&old.after) && same_path(value, old) {
        value.learned = old.learned;
        value.packets = old.packets;
        value.bytes = old.bytes;
    }
}
