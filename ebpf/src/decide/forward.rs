//! Whether an entry of the flow cache carries a packet, and what a packet that it does not carry leaves behind.

use super::tuple::Tuple;
use super::{
    Terms,
    age::{self, Due, Times},
    service,
};
use crate::layout::{
    flow::{
        Entry, GATE_HOLD, OVERHEAD, PROBE_NONE, PROBE_SENT, SIDE_NODE, SIDE_OUTSIDE, SIDE_TUNNEL,
        STATE_ACTIVE, STATE_CLOSING, STATE_LIKELY, STATE_SLOW, Way,
    },
    maps::Config,
    reason::Reason,
};

/// What the decision looks at of a packet. The packet's flow is the key by which the entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where the packet came in.
    pub way: Way,
    /// Destination and source MAC as the packet came: 12 bytes in the order of the packet.
    pub macs: [u32; 3],
    /// DSCP in the upper six bits.
    pub dscp: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// The packet stands for several (GSO, GRO): costly to send through OVS.
    pub aggregate: bool,
}

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision<'a, T, R> {
    /// The entry carries it. `R` is what is known of the receiver.
    Forward(&'a mut Entry<T>, R),
    /// The packet goes to OVS, as its service is kept off the cache: [`Reason::ServiceSlow`]. The entry counts it.
    KeptOff(&'a mut Entry<T>),
    /// The packet goes to OVS unchanged. [`forgets`], [`is_urgent`] and [`is_noted`] say what else is to be done.
    Slow(Reason),
}

/// Decides on a packet whose flow has `entry`, if any. The only changes to the entry are its activation, that it was found current, and
/// that a refresh packet is on its way.
///
/// `receiver` looks at the port that gets the packet and says why it may not; `is_current` whether nothing that concerns the entry has
/// changed, see [`super::scope::is_current`]; `is_open` whether both directions of the TCP connection were seen. Each is asked only when
/// it matters, as it is a look into a map.
#[inline(always)]
pub fn decide<'a, T: Tuple, R>(
    entry: Option<&'a mut Entry<T>>,
    packet: &Facts,
    terms: &Terms<'_>,
    receiver: impl FnOnce(&Entry<T>) -> Result<R, Reason>,
    is_current: impl FnOnce(&Entry<T>) -> bool,
    is_open: impl FnOnce(&Entry<T>) -> bool,
) -> Decision<'a, T, R> {
    let Some(entry) = entry else { return Decision::Slow(Reason::Miss) };
    match check(entry, packet, terms, receiver, is_current, is_open) {
        Ok(receiver) => Decision::Forward(entry, receiver),
        Err(Reason::ServiceSlow) => Decision::KeptOff(entry),
        Err(reason) => Decision::Slow(reason),
    }
}

#[inline(always)]
fn check<T: Tuple, R>(
    entry: &mut Entry<T>,
    packet: &Facts,
    terms: &Terms<'_>,
    receiver: impl FnOnce(&Entry<T>) -> Result<R, Reason>,
    is_current: impl FnOnce(&Entry<T>) -> bool,
    is_open: impl FnOnce(&Entry<T>) -> bool,
) -> Result<R, Reason> {
    // One branch for what nearly always holds.
    let stale = entry.epoch ^ terms.epoch;
    let way = different(entry.way, packet.way);
    let macs = different(entry.macs, packet.macs);
    let marked = u32::from(entry.dscp ^ packet.dscp);
    let unchecked = entry.checked ^ terms.change;
    if stale | way | macs | marked | unchecked != 0 {
        if entry.state == STATE_CLOSING {
            return Err(Reason::Closing);
        } else if stale != 0 {
            return Err(Reason::Stale);
        } else if way != 0 {
            return Err(Reason::OtherWay);
        } else if macs != 0 {
            return Err(Reason::MacMismatch);
        } else if marked != 0 {
            return Err(Reason::DscpMismatch);
        } else if !is_current(entry) {
            return Err(Reason::ScopeChanged);
        }
        entry.checked = terms.change;
    }
    let receiver = receiver(entry)?;
    if entry.state != STATE_ACTIVE {
        if entry.state == STATE_CLOSING {
            return Err(Reason::Closing);
        }
        if entry.state == STATE_SLOW {
            return Err(service::slow(entry, terms));
        }
        if entry.state >= STATE_LIKELY {
            return Err(Reason::Likely);
        }
        if !is_open(entry) {
            return Err(Reason::Waiting);
        }
        entry.state = STATE_ACTIVE;
    }
    // A packet whose TTL ends at one of OVN's routers is answered by it.
    if u32::from(packet.ttl) <= u32::from(entry.ttl_step) + 1 {
        return Err(Reason::LowTtl);
    }
    refresh(entry, packet.aggregate, terms)?;
    Ok(receiver)
}

/// Not 0 if the words are not the same.
#[inline(always)]
pub(super) const fn different(one: [u32; 3], other: [u32; 3]) -> u32 {
    let ([a, b, c], [d, e, f]) = (one, other);
    (a ^ d) | (b ^ e) | (c ^ f)
}

/// Whether both directions of a TCP connection came out of OVS in this epoch and nothing that concerns the other one has changed since.
/// It may have said its last since then; RST takes its epoch away. `key`: of an entry of this epoch; `partner`: what there is of the other
/// direction; `is_current`: asked of it.
#[inline(always)]
pub fn is_open<T: Tuple>(
    key: &T,
    partner: Option<&Entry<T>>,
    epoch: u32,
    is_current: impl FnOnce(&Entry<T>) -> bool,
) -> bool {
    let Some(partner) = partner else { return false };
    partner.epoch == epoch && partner.partner().is(key) && is_current(partner)
}

/// Looks at the deadline. The packet may use the entry, or is the one that OVS is asked with, or the entry is dead.
#[inline(always)]
fn refresh<T>(entry: &mut Entry<T>, aggregate: bool, terms: &Terms<'_>) -> Result<(), Reason> {
    let Terms { config, gate, now, .. } = *terms;
    let times = Times { slack: config.slack, overdue: config.overdue, early: age::early(config.refresh) };
    match age::due(now, entry.deadline, entry.probing, !aggregate, times) {
        Due::Fresh => Ok(()),
        // OVS is away. The programs see the end of the hold themselves, so that it comes without the agent too.
        _ if gate & GATE_HOLD != 0 && age::holds(now, config.hold_until) => Ok(()),
        Due::Probe => {
            entry.deadline = now.wrapping_add(config.grace);
            entry.probing = PROBE_SENT;
            Err(Reason::Probe)
        }
        Due::Dead => Err(Reason::Dead),
        Due::Overdue => Err(Reason::Overdue),
    }
}

/// Whether the entry of a packet that goes slow for this reason must go: see [`forget`].
#[inline(always)]
pub const fn forgets(reason: Reason) -> bool {
    matches!(reason, Reason::Dead | Reason::Overdue)
}

/// The entry is not used again. What it counted stays until it is replaced or swept.
#[inline(always)]
pub fn forget<T>(entry: &mut Entry<T>) {
    entry.epoch = 0;
    entry.probing = PROBE_NONE;
}

/// Whether the entry dies if the packet that goes slow for this reason is not noted.
#[inline(always)]
pub const fn is_urgent(reason: Reason) -> bool {
    matches!(reason, Reason::Probe)
}

/// Whether a packet that goes slow for this reason is noted: an entry that is made or confirmed by it could carry the next one.
#[inline(always)]
pub const fn is_noted(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Miss
            | Reason::Stale
            | Reason::ScopeChanged
            | Reason::OtherWay
            | Reason::MacMismatch
            | Reason::DscpMismatch
            | Reason::Waiting
            | Reason::Likely
            | Reason::Probe
            | Reason::Dead
            | Reason::Overdue
    )
}

/// Whether a packet fits what it leaves by. `side`: `SIDE_*`; `target`: the interface; `length`: bytes from the IP header to the end; `headers`: of
/// those, bytes in front of the payload; `gso_size`: payload bytes of one segment, 0 for a single packet.
#[inline(always)]
pub const fn fits(
    (side, target): (u8, u32),
    length: u32,
    headers: u32,
    gso_size: u32,
    config: &Config,
) -> bool {
    let on_the_wire = if gso_size == 0 { length } else { headers.wrapping_add(gso_size) };
    if side == SIDE_TUNNEL {
        // The length field of the outer IPv4 header has 16 bits.
        length.wrapping_add(OVERHEAD) <= 0xffff && on_the_wire <= config.tunnel_mtu
    } else if side == SIDE_OUTSIDE && target == config.uplink {
        on_the_wire <= config.uplink_mtu as u32
    } else {
        // An interface of a physical network takes what pods' interfaces take, or there are no entries that lead there.
        // What the node receives is not measured, neither by OVS nor by the kernel.
        side == SIDE_NODE || on_the_wire <= config.pod_mtu
    }
}
