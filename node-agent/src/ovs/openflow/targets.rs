//! Kinds of fields that actions write, and bits of fields that they copy.

use super::oxm::{self, Id};

/// Fields that OVN's flows write, by what they mean there (OVN, include/ovn/logical-fields.h, northd/northd.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Target {
    /// Logical datapath, `metadata`.
    Datapath,
    /// Logical ingress port, register 14.
    Ingress,
    /// Logical egress port, register 15.
    Egress,
    /// Registers 0 to 3: the next hop in routers.
    NextHop,
    /// Registers 4 to 7: the destination before translation in switches.
    Original,
    /// Ethernet source.
    EthSource,
    /// Ethernet destination.
    EthDestination,
    /// IP addresses.
    Address,
    /// Ports of TCP, UDP and SCTP.
    Port,
    /// TTL, other than by lowering it.
    Ttl,
    /// Ethernet type or encapsulation.
    Encapsulation,
    /// What it is could not be read.
    Unknown,
}

/// A set of [`Target`]s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Targets(u16);

impl Targets {
    pub(super) fn insert(&mut self, target: Target) {
        self.0 |= 1 << target as u8;
    }

    /// Whether a target is in the set.
    pub fn contains(self, target: Target) -> bool {
        self.0 & 1 << target as u8 != 0
    }

    /// Whether no target is.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A field, or bits of it: where a value is copied from or to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) id: Id,
    /// Place of the lowest bit.
    offset: u16,
    bits: u16,
}

impl Part {
    /// The first register, and how many, if they are whole.
    pub(super) fn words(self) -> Option<(usize, usize)> {
        let whole = self.offset.is_multiple_of(32) && self.bits.is_multiple_of(32);
        let (first, last) = self.lanes().filter(|_| whole)?;
        Some((first, last + 1 - first))
    }

    /// The first and the last register that it touches. The highest bits are in the first register.
    pub(super) fn lanes(self) -> Option<(usize, usize)> {
        let (first, count) = oxm::registers(self.id)?;
        let lane = |bit: u16| (first + count).checked_sub(1 + usize::from(bit / 32));
        Some((lane((self.offset + self.bits).checked_sub(1)?)?, lane(self.offset)?))
    }

    pub(super) fn is(self, ids: &[Id]) -> bool {
        ids.contains(&self.id)
    }
}

/// From the fields of an action; `None` if one is missing.
pub(super) fn part(header: Option<u32>, offset: Option<u16>, bits: Option<u16>) -> Option<Part> {
    Some(Part { id: header? >> 9, offset: offset?.min(2048), bits: bits?.min(2048) })
}

/// What a register is.
pub(super) fn register_target(at: usize) -> Option<Target> {
    match at {
        0..=3 => Some(Target::NextHop),
        4..=7 => Some(Target::Original),
        14 => Some(Target::Ingress),
        15 => Some(Target::Egress),
        _ => None,
    }
}

/// What a field other than a register is.
pub(super) fn target(id: Id) -> Option<Target> {
    let is = |ids: &[Id]| ids.contains(&id);
    if id == oxm::METADATA {
        Some(Target::Datapath)
    } else if is(&oxm::ETH_SRC) {
        Some(Target::EthSource)
    } else if is(&oxm::ETH_DST) {
        Some(Target::EthDestination)
    } else if is(&oxm::IPV4_SRC) || is(&oxm::IPV4_DST) || is(&oxm::IPV6_SRC) || is(&oxm::IPV6_DST) {
        Some(Target::Address)
    } else if is(&oxm::PORT_SRC) || is(&oxm::PORT_DST) {
        Some(Target::Port)
    } else if id == oxm::IP_TTL {
        Some(Target::Ttl)
    } else {
        None
    }
}
