//! Whether a change of OVS's tables concerns an entry: see [`crate::layout::scope`], and `docs/datapath.md` for why it is enough to look
//! at these scopes.
//!
//! An entry names no scopes, it has what they are made of. It is of: the addresses before and after OVS, the ports of this node by which
//! packets come and go, the sender's MAC as sent and the receiver's as delivered, and, where a tunnel is on the way, both keys in its
//! option and the datapath. So a packet has one number compared ([`Entry::checked`]); only the first one after a change has the buckets
//! looked at.
//!
//! What is known of OVN's tables holds for ways that pass a pod's switch and at most one router: entries of other ways are
//! [`SENSITIVE`], and no longer valid after any change.

use super::tuple::Tuple;
use crate::layout::{
    flow::{Entry, SENSITIVE, SIDE_NODE, SIDE_OUTSIDE, SIDE_TUNNEL, TRANSLATED},
    reason::Reason,
    scope::{self, CLOSED},
};

/// What buckets say of an entry: [`CLOSED`] of one of them, and this bit if one has changed since.
pub const CHANGED: u32 = 1 << 31;

/// Whether it cannot be told which changes concern an entry. `node_ports`: whether the ports of the node by which packets come and go
/// are the management port, asked if they are some port of the node.
#[inline(always)]
pub fn is_sensitive<T: Tuple>(key: &T, value: &Entry<T>, is_management: impl Fn(u32) -> bool) -> bool {
    let outside =
        |side: u8, ifindex: u32| side == SIDE_OUTSIDE || (side == SIDE_NODE && !is_management(ifindex));
    outside(key.side(), value.way[0])
        || outside(value.after.side(), value.target)
        || value.ttl_step > 1
        || key.both_addresses_differ(&value.after)
}

/// Whether an entry is of no scope that has changed since its packet entered OVS. `change`: the configuration's; `bucket`: reads one.
#[inline(always)]
pub fn is_current<T: Tuple>(
    key: &T,
    entry: &Entry<T>,
    change: u32,
    bucket: impl Fn(u32) -> Option<u32>,
) -> bool {
    entry.checked == change || (entry.translated & SENSITIVE == 0 && look(key, entry, bucket) & CHANGED == 0)
}

/// Whether an entry may be made or confirmed by what came out of OVS. `value`: made of it; `change`: the configuration's, now; `bucket`:
/// reads one.
///
/// # Errors
/// A scope has changed since the packet entered, or is closed.
#[inline(always)]
pub fn may_learn<T: Tuple>(
    key: &T,
    value: &Entry<T>,
    change: u32,
    bucket: impl Fn(u32) -> Option<u32>,
) -> Result<(), Reason> {
    let closed = change & CLOSED != 0;
    if value.entered == change && !closed {
        return Ok(());
    }
    let found = if value.translated & SENSITIVE == 0 {
        look(key, value, bucket)
    } else if closed {
        CLOSED
    } else {
        CHANGED
    };
    if found & CHANGED != 0 {
        Err(Reason::NoteOldScope)
    } else if found & CLOSED != 0 {
        Err(Reason::ScopeClosed)
    } else {
        Ok(())
    }
}

/// What the buckets of an entry say.
#[inline(always)]
fn look<T: Tuple>(key: &T, entry: &Entry<T>, bucket: impl Fn(u32) -> Option<u32>) -> u32 {
    let since = entry.entered & !CLOSED;
    let one = |number: u32| match bucket(number) {
        Some(value) => (since.wrapping_sub(value & !CLOSED) & CHANGED) | (value & CLOSED),
        None => CHANGED,
    };
    let tunnel = |vni: u32, option: u32| {
        one(scope::datapath(vni))
            | one(scope::key(vni, option >> 16 & 0x7fff))
            | one(scope::key(vni, option & 0xffff))
    };
    let mut found = one(key.source_scope()) | one(key.destination_scope());
    if entry.translated & TRANSLATED != 0 {
        found |= one(entry.after.source_scope()) | one(entry.after.destination_scope());
    }
    let [_, middle, last] = entry.macs;
    // On the little-endian machines that the programs run on.
    found |= one(scope::mac(middle >> 16, last));
    found |= if key.side() == SIDE_TUNNEL {
        let [vni, option, _] = entry.way;
        tunnel(vni, u32::from_be(option))
    } else {
        one(scope::port(entry.way[0]))
    };
    let front = if entry.after.side() == SIDE_TUNNEL {
        let (vni, option) = tunnelled(entry);
        found |= tunnel(vni, option);
        // Bytes 58 to 63, the inner frame's destination.
        entry.header[7] >> 16
    } else {
        found |= one(scope::port(entry.target));
        entry.header[0]
    };
    found | one(delivered(front))
}

/// Bucket of the MAC in the first six bytes of a word.
#[expect(clippy::cast_possible_truncation, reason = "parts of the word")]
#[inline(always)]
const fn delivered(front: u64) -> u32 {
    scope::mac((front & 0xffff) as u32, (front >> 16) as u32)
}

/// VNI and OVN's option, as numbers, in the header of an entry that leads into a tunnel.
#[inline(always)]
const fn tunnelled<T>(entry: &Entry<T>) -> (u32, u32) {
    let [_, _, _, _, _, fifth, sixth, seventh, _] = entry.header;
    let ([.., high, middle], [low, _, _, _, _, _, a, b]) = (fifth.to_ne_bytes(), sixth.to_ne_bytes());
    let [c, d, ..] = seventh.to_ne_bytes();
    (u32::from_be_bytes([0, high, middle, low]), u32::from_be_bytes([a, b, c, d]))
}
