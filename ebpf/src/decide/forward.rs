//! Whether an entry of the flow cache carries a packet, and what a packet that it does not carry leaves behind.

use super::{
    Terms,
    age::{self, Due, Times},
};
use crate::layout::{
    flow::{EgressFlow, GATE_HOLD, IngressFlow, KIND_LOCAL, OVERHEAD},
    maps::Config,
    reason::Reason,
};

/// What the decision looks at of an entry. Entries of both directions have it.
pub trait Entry {
    /// Epoch in which the packet that taught the entry entered OVS.
    fn epoch(&self) -> u32;
    /// Destination and source MAC of the packets that the entry is for: 12 bytes in the order of the packet.
    fn matched_macs(&self) -> [u32; 3];
    /// DSCP of the packets that the entry is for, in the upper six bits.
    fn dscp(&self) -> u8;
    /// How much OVS lowered the TTL or hop limit.
    fn ttl_step(&self) -> u8;
    /// Not 0: packets may use the entry. Until then the connection's state is asked.
    fn active(&mut self) -> &mut u8;
    /// When the entry is to be confirmed by OVS.
    fn timer(&mut self) -> Timer<'_>;
}

/// When an entry is to be confirmed by OVS.
#[derive(Debug)]
pub struct Timer<'a> {
    /// Tick from which on a packet goes through OVS again; while one is inside OVS, the tick at which the entry dies.
    pub deadline: &'a mut u32,
    /// Not 0: a refresh packet is inside OVS.
    pub probing: &'a mut u8,
}

macro_rules! entry {
    ($entry:ty, $macs:ident) => {
        impl Entry for $entry {
            #[inline(always)]
            fn epoch(&self) -> u32 {
                self.epoch
            }

            #[inline(always)]
            fn matched_macs(&self) -> [u32; 3] {
                self.$macs
            }

            #[inline(always)]
            fn dscp(&self) -> u8 {
                self.dscp
            }

            #[inline(always)]
            fn ttl_step(&self) -> u8 {
                self.ttl_step
            }

            #[inline(always)]
            fn active(&mut self) -> &mut u8 {
                &mut self.active
            }

            #[inline(always)]
            fn timer(&mut self) -> Timer<'_> {
                Timer { deadline: &mut self.deadline, probing: &mut self.probing }
            }
        }
    };
}

entry!(EgressFlow, macs);
entry!(IngressFlow, arrived);

/// What the decision looks at of a packet. The packet's flow is the key by which the entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
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
pub enum Decision<'a, E, R> {
    /// The entry carries it. `R` is what is known of the receiver.
    Forward(&'a mut E, R),
    /// It goes to OVS as it is. [`forgets`], [`is_urgent`], [`pod_leaves`] and [`tunnel_leaves`] say what else is to be done.
    Slow(Reason),
}

/// Decides on a packet whose flow has `entry`, if any. The only changes to the entry are its activation, and that a refresh packet is
/// on its way.
///
/// `receiver` looks at the port that gets the packet and says why it may not; `is_open` whether both directions of the TCP connection
/// were seen. Both are asked only when it matters, as each is a look into a map.
#[inline(always)]
pub fn decide<'a, E: Entry, R>(
    entry: Option<&'a mut E>,
    packet: &Facts,
    terms: &Terms<'_>,
    receiver: impl FnOnce(&E) -> Result<R, Reason>,
    is_open: impl FnOnce(&E) -> bool,
) -> Decision<'a, E, R> {
    let Some(entry) = entry else { return Decision::Slow(Reason::Miss) };
    match check(entry, packet, terms, receiver, is_open) {
        Ok(receiver) => Decision::Forward(entry, receiver),
        Err(reason) => Decision::Slow(reason),
    }
}

#[inline(always)]
fn check<E: Entry, R>(
    entry: &mut E,
    packet: &Facts,
    terms: &Terms<'_>,
    receiver: impl FnOnce(&E) -> Result<R, Reason>,
    is_open: impl FnOnce(&E) -> bool,
) -> Result<R, Reason> {
    // One branch for what nearly always holds.
    let stale = entry.epoch() ^ terms.epoch;
    let ([a, b, c], [first, second, third]) = (entry.matched_macs(), packet.macs);
    let other = (a ^ first) | (b ^ second) | (c ^ third);
    let marked = u32::from(entry.dscp() ^ packet.dscp);
    if stale | other | marked != 0 {
        return Err(if stale != 0 {
            Reason::Stale
        } else if other != 0 {
            Reason::MacMismatch
        } else {
            Reason::DscpMismatch
        });
    }
    let receiver = receiver(entry)?;
    if *entry.active() == 0 {
        if !is_open(entry) {
            return Err(Reason::Waiting);
        }
        *entry.active() = 1;
    }
    // A packet whose TTL ends at one of OVN's routers is answered by it.
    if u32::from(packet.ttl) <= u32::from(entry.ttl_step()) + 1 {
        return Err(Reason::LowTtl);
    }
    refresh(entry.timer(), packet.aggregate, terms)?;
    Ok(receiver)
}

/// Looks at the deadline. The packet may use the entry, or is the one that OVS is asked with, or the entry is dead.
#[inline(always)]
fn refresh(timer: Timer<'_>, aggregate: bool, terms: &Terms<'_>) -> Result<(), Reason> {
    let Terms { config, gate, now, .. } = *terms;
    let times = Times { slack: config.slack, overdue: config.overdue };
    match age::due(now, *timer.deadline, *timer.probing != 0, !aggregate, times) {
        Due::Fresh => Ok(()),
        // OVS is away. The programs see the end of the hold themselves, so that it comes without the agent too.
        _ if gate & GATE_HOLD != 0 && age::holds(now, config.hold_until) => Ok(()),
        Due::Probe => {
            *timer.deadline = now.wrapping_add(config.grace);
            *timer.probing = 1;
            Err(Reason::Probe)
        }
        Due::Dead => Err(Reason::Dead),
        Due::Overdue => Err(Reason::Overdue),
    }
}

/// Whether the entry of a packet that goes slow for this reason must go.
#[inline(always)]
pub const fn forgets(reason: Reason) -> bool {
    matches!(reason, Reason::Dead | Reason::Overdue)
}

/// Whether the entry dies if the packet that goes slow for this reason is not noted.
#[inline(always)]
pub const fn is_urgent(reason: Reason) -> bool {
    matches!(reason, Reason::Probe)
}

/// What a packet that goes to OVS leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Nothing.
    Nothing,
    /// A mark: packets of the flow come by this way, and nothing is learned from this one.
    Mark,
    /// A note: what OVS does with the packet makes an entry or confirms one.
    Note,
}

/// Whether an entry that is made or confirmed now could carry the next packet like one that goes slow for this reason.
#[inline(always)]
const fn teaches(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Miss
            | Reason::Stale
            | Reason::MacMismatch
            | Reason::DscpMismatch
            | Reason::Waiting
            | Reason::Probe
            | Reason::Dead
            | Reason::Overdue
    )
}

/// What a pod's packet leaves behind that goes to OVS for this reason.
#[inline(always)]
pub const fn pod_leaves(reason: Reason) -> Leaves {
    if teaches(reason) { Leaves::Note } else { Leaves::Nothing }
}

/// What a packet from the tunnel leaves behind that goes to OVS for this reason. One that no entry could carry leaves a mark: else it
/// would be credited with the note that a packet of another node or network left.
#[inline(always)]
pub const fn tunnel_leaves(reason: Reason) -> Leaves {
    match reason {
        Reason::CongestionMark
        | Reason::LowTtl
        | Reason::EndpointSlow
        | Reason::EndpointDiverged
        | Reason::OuterChecksum => Leaves::Mark,
        reason if teaches(reason) => Leaves::Note,
        _ => Leaves::Nothing,
    }
}

/// Whether a packet fits the way of an entry of this kind (`KIND_*`). `length`: bytes from the IP header to the end; `headers`: of
/// those, bytes in front of the payload; `gso_size`: payload bytes of one segment, 0 for a single packet.
#[inline(always)]
pub const fn fits(kind: u8, length: u32, headers: u32, gso_size: u32, config: &Config) -> bool {
    let on_the_wire = if gso_size == 0 { length } else { headers.wrapping_add(gso_size) };
    if kind == KIND_LOCAL {
        on_the_wire <= config.pod_mtu
    } else {
        // The length field of the outer IPv4 header has 16 bits.
        length.wrapping_add(OVERHEAD) <= 0xffff && on_the_wire <= config.tunnel_mtu
    }
}
