//! Which fields a flow's actions write, as far as the scopes of changes depend on it. Actions in clones count as well: they are
//! done to a packet that goes on.

use std::net::Ipv6Addr;

use api::MacAddr;

use super::oxm::{self, Field, Id};
use super::{u16_at, u32_at};

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
    fn insert(&mut self, target: Target) {
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

/// Summary of what actions write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    /// Number of actions outside of clones.
    pub actions: u16,
    /// OpenFlow port of the last `output`.
    pub output: Option<u32>,
    /// Constant that is written to `metadata`.
    pub datapath: Option<u64>,
    /// Constant that is written to the Ethernet source, other than 0.
    pub eth_source: Option<MacAddr>,
    /// Constant that is written to the Ethernet destination, other than 0.
    pub eth_destination: Option<MacAddr>,
    /// Registers 4 to 7 get registers 0 to 3: a router's next hop.
    pub carries: bool,
    /// Register 1 gets something other than 0 or the original destination of the connection. Switches ask for that destination
    /// there, and copy it to register 4.
    pub scratches: bool,
    /// The egress port becomes the ingress port: packets go back to where they came from.
    pub returns: bool,
    /// The TTL is lowered.
    pub lowers_ttl: bool,
    /// Addresses are translated by connection tracking: `ct(nat)`, or a group, as load balancers have.
    pub translates: bool,
    /// The destination is: a group, or `ct(nat(dst))`.
    pub translates_destination: bool,
    /// Targets that get a constant.
    pub constant: Targets,
    /// Targets that get something else: a part, another field, another constant as well.
    pub other: Targets,
    registers: [u32; 16],
    /// Bit for each register that gets a constant, other than 0, whole.
    known: u16,
    /// Bit for each register that is set to 0 whole.
    zeroed: u16,
    /// What was pushed, and how often.
    stack: [Option<Part>; 4],
    pushed: usize,
}

/// A field, or bits of it: where a value is copied from or to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    id: Id,
    /// Of the lowest bit.
    offset: u16,
    bits: u16,
}

impl Part {
    /// The first register, and how many, if they are whole.
    fn words(self) -> Option<(usize, usize)> {
        let whole = self.offset.is_multiple_of(32) && self.bits.is_multiple_of(32);
        let (first, last) = self.lanes().filter(|_| whole)?;
        Some((first, last + 1 - first))
    }

    /// The first and the last register that it touches. The highest bits are in the first register.
    fn lanes(self) -> Option<(usize, usize)> {
        let (first, count) = oxm::registers(self.id)?;
        let lane = |bit: u16| (first + count).checked_sub(1 + usize::from(bit / 32));
        Some((lane((self.offset + self.bits).checked_sub(1)?)?, lane(self.offset)?))
    }

    fn is(self, ids: &[Id]) -> bool {
        ids.contains(&self.id)
    }
}

fn part(header: Option<u32>, offset: Option<u16>, bits: Option<u16>) -> Option<Part> {
    Some(Part { id: header? >> 9, offset: offset?.min(2048), bits: bits?.min(2048) })
}

impl Effects {
    /// Constant, other than 0, that is written to a register.
    pub fn register(&self, at: usize) -> Option<u32> {
        self.registers.get(at).copied().filter(|_| at < 16 && self.known & 1 << at != 0)
    }

    /// Constant that is written to four registers, other than 0, as an IPv6 address.
    pub fn registers(&self, first: usize) -> Option<Ipv6Addr> {
        let mut bits = 0;
        for at in first..first + 4 {
            let zero = (at < 16 && self.zeroed & 1 << at != 0).then_some(0);
            bits = bits << 32 | u128::from(self.register(at).or(zero)?);
        }
        (bits != 0).then(|| Ipv6Addr::from_bits(bits))
    }

    /// Whether a target is written at all.
    pub fn writes(&self, target: Target) -> bool {
        self.constant.contains(target) || self.other.contains(target)
    }

    /// Whether registers 0 to 7 are all set to 0.
    pub fn zeroes(&self) -> bool {
        self.zeroed & 0xff == 0xff
    }

    /// Actions that cannot be read.
    pub(super) fn unreadable(&mut self) {
        self.other.insert(Target::Unknown);
    }

    /// An action (OpenFlow 1.5, section 7.2.6): its type, and what follows its length.
    pub(super) fn take(&mut self, kind: u16, body: &[u8], depth: u8) {
        self.actions += u16::from(depth == 0);
        match kind {
            0 => self.output = u32_at(body, 0).or(self.output),
            22 => (self.translates, self.translates_destination) = (true, true),
            // Copies between IP and MPLS headers, MPLS and PBB, encapsulation; VLAN tags are not looked at.
            11 | 12 | 15 | 16 | 19 | 20 | 26 | 27 => self.other.insert(Target::Encapsulation),
            23 => self.constant.insert(Target::Ttl),
            24 => self.lowers_ttl = true,
            25 => self.set_fields(body),
            // OFPAT_COPY_FIELD: bits, offsets, headers of source and destination.
            28 => self.copy_field(body, 8),
            _ => {}
        }
    }

    /// An action of Nicira's, by its subtype (OVS, lib/ofp-actions.c), and what follows it.
    pub(super) fn nicira(&mut self, kind: u16, body: &[u8]) {
        match kind {
            // NXAST_REG_MOVE: bits, offsets, headers.
            6 => self.copy_field(body, 6),
            // NXAST_REG_LOAD: offset and bits, header, value.
            7 => self.load(body),
            18 | 21 => self.lowers_ttl = true,
            // NXAST_STACK_PUSH, NXAST_STACK_POP: offset, header, bits.
            27 => self.push(part(u32_at(body, 2), u16_at(body, 0), u16_at(body, 6))),
            28 => {
                let from = self.pop();
                self.copy(from, part(u32_at(body, 2), u16_at(body, 0), u16_at(body, 6)));
            }
            // NXAST_REG_LOAD2: padding, field.
            33 => self.set_fields(body.get(6..).unwrap_or_default()),
            // NXAST_NAT: padding, flags; 1 is for the source, 2 for the destination.
            36 => {
                self.translates = true;
                self.translates_destination |= u16_at(body, 2).is_none_or(|flags| flags & 2 != 0);
            }
            46..=48 => self.other.insert(Target::Encapsulation),
            // NXAST_DELETE_FIELD is for tunnel metadata alone.
            _ => {}
        }
    }

    fn set_fields(&mut self, body: &[u8]) {
        let Some((field, _)) = Field::split(body) else { return self.other.insert(Target::Unknown) };
        if let Some((first, count)) = oxm::registers(field.id) {
            (0..count).for_each(|word| self.set_register(first + word, field.word(word)));
            return;
        }
        let Some(target) = target(field.id) else { return };
        let constant = field.whole().is_some();
        let mac = || field.value.try_into().ok().map(MacAddr).filter(|mac| mac.0 != [0; 6]);
        let again = match target {
            Target::Datapath => {
                let value = field.whole().and_then(|number| u64::try_from(number).ok());
                self.datapath.replace(value.unwrap_or(0)).is_some_and(|old| Some(old) != value)
            }
            Target::EthSource => {
                mac().is_some_and(|mac| self.eth_source.replace(mac).is_some_and(|old| old != mac))
            }
            Target::EthDestination => {
                mac().is_some_and(|mac| self.eth_destination.replace(mac).is_some_and(|old| old != mac))
            }
            _ => false,
        };
        let set = if constant && !again { &mut self.constant } else { &mut self.other };
        set.insert(target);
    }

    fn set_register(&mut self, at: usize, (value, mask): (u32, u32)) {
        let (Some(target), Some(register)) = (register_target(at), self.registers.get_mut(at)) else {
            return;
        };
        let bit = 1 << at;
        self.scratches |= at == 1 && mask != 0 && (value, mask) != (0, u32::MAX);
        match (value, mask) {
            (_, 0) => {}
            (0, u32::MAX) => self.zeroed |= bit,
            (_, u32::MAX) => {
                if self.known & bit != 0 && *register != value {
                    self.other.insert(target);
                }
                *register = value;
                self.known |= bit;
                self.constant.insert(target);
            }
            _ => self.other.insert(target),
        }
    }

    fn load(&mut self, body: &[u8]) {
        let (Some(bits), Some(header), Some(low)) = (u16_at(body, 0), u32_at(body, 2), u32_at(body, 10))
        else {
            return self.other.insert(Target::Unknown);
        };
        match oxm::registers(header >> 9) {
            // Offset 0, 32 bits.
            Some((at, 1)) if bits == 31 => self.set_register(at, (low, u32::MAX)),
            // The lower six bits are the number of bits less one.
            _ => self.copy(None, part(Some(header), Some(bits >> 6), Some((bits & 63) + 1))),
        }
    }

    /// A copy: bits, offsets, and headers from `at` on. Those of experimenters (class 0xffff) take eight bytes.
    fn copy_field(&mut self, body: &[u8], at: usize) {
        let from = u32_at(body, at);
        let long = from.is_some_and(|header| header >> 16 == 0xffff);
        let to = u32_at(body, at + if long { 8 } else { 4 });
        let bits = u16_at(body, 0);
        self.copy(part(from, u16_at(body, 2), bits), part(to, u16_at(body, 4), bits));
    }

    fn push(&mut self, part: Option<Part>) {
        if let Some(place) = self.stack.get_mut(self.pushed) {
            *place = part;
        }
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<Part> {
        self.pushed = self.pushed.checked_sub(1)?;
        *self.stack.get(self.pushed)?
    }

    fn copy(&mut self, from: Option<Part>, to: Option<Part>) {
        let Some(to) = to else { return self.unreadable() };
        if from == Some(to) {
            return;
        }
        let Some((first, last)) = to.lanes() else {
            if let Some(target) = target(to.id) {
                self.other.insert(target);
            }
            return;
        };
        let destination = from.is_some_and(|from| from.is(&oxm::IPV4_DST) || from.is(&oxm::IPV6_DST));
        let tracked = from.is_some_and(|from| from.is(&oxm::CT_DST));
        match (from.and_then(Part::words), to.words()) {
            (Some(from), Some(to)) if from == to => {}
            (Some((14, 1)), Some((15, 1))) => self.returns = true,
            (Some((0, from)), Some((4, to))) if from == to => self.carries = true,
            (_, Some((0, 1 | 4))) if destination => {}
            (_, Some((4, 1 | 4))) if destination || tracked => {}
            (_, Some((1, 1))) if tracked => {}
            // After 0, a look-up put it there.
            (Some((1, 1)), Some((4, 1))) if self.zeroed & 2 != 0 => {}
            _ => {
                self.scratches |= (first..=last).contains(&1);
                (first..=last).filter_map(register_target).for_each(|target| self.other.insert(target));
            }
        }
    }
}

fn register_target(at: usize) -> Option<Target> {
    match at {
        0..=3 => Some(Target::NextHop),
        4..=7 => Some(Target::Original),
        14 => Some(Target::Ingress),
        15 => Some(Target::Egress),
        _ => None,
    }
}

fn target(id: Id) -> Option<Target> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn field(class: u16, number: u8, value: &[u8]) -> Vec<u8> {
        [&class.to_be_bytes()[..], &[number << 1, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn set(fields: &[Vec<u8>]) -> Effects {
        let mut effects = Effects::default();
        fields.iter().for_each(|field| effects.take(25, field, 0));
        effects
    }

    #[test]
    fn constants_are_told_from_parts_and_copies() {
        let effects = set(&[
            field(1, 0, &[10, 0, 0, 1]),
            field(1, 111 + 1, &[0; 16]),
            field(0x8000, 2, &[0, 0, 0, 0, 0, 0, 0, 3]),
        ]);
        assert_eq!(
            (effects.register(0), effects.register(4), effects.datapath),
            (Some(0x0a00_0001), None, Some(3))
        );
        assert!(effects.constant.contains(Target::NextHop) && effects.other.is_empty());
        let twice = set(&[field(1, 0, &[10, 0, 0, 1]), field(1, 0, &[10, 0, 0, 2])]);
        assert!(twice.other.contains(Target::NextHop), "one of two constants");
        let mut masked = vec![0, 1, 1, 8];
        masked.extend([0, 0, 0, 1, 0, 0, 0, 1]);
        assert!(set(&[masked]).other.contains(Target::NextHop));
        assert!(!set(&[field(1, 111, &[0; 16])]).zeroes());
        assert!(set(&[field(1, 111, &[0; 16]), field(1, 112, &[0; 16])]).zeroes());
    }

    fn header(id: Id) -> [u8; 4] {
        (id << 9 | 4).to_be_bytes()
    }

    const fn register(at: u32) -> Id {
        1 << 7 | at
    }

    #[test]
    fn a_copy_of_the_destination_is_a_next_hop_and_another_is_not() {
        let copy = |from: u32, to: u32, offset: u8, bits: u8| {
            let mut effects = Effects::default();
            let mut body = vec![0, bits, 0, 0, 0, offset, 0, 0];
            body.extend([header(from), header(to)].concat());
            effects.take(28, &body, 0);
            effects
        };
        assert!(copy(oxm::IPV4_DST[0], register(0), 0, 32).other.is_empty());
        assert!(copy(oxm::IPV4_DST[0], register(111), 96, 32).other.is_empty());
        assert!(copy(oxm::IPV6_DST[0], register(111), 0, 128).other.is_empty());
        assert!(copy(oxm::IPV4_SRC[0], register(0), 0, 32).other.contains(Target::NextHop));
        assert!(copy(register(10), register(111), 111, 1).other.contains(Target::NextHop));
        assert!(copy(oxm::CT_DST[0], register(4), 0, 32).other.is_empty());
        assert!(copy(register(13), register(15), 0, 32).other.contains(Target::Egress));
        assert!(copy(register(14), register(15), 0, 32).returns);
        assert!(copy(register(111), register(112), 0, 128).carries);
    }

    #[test]
    fn what_is_pushed_comes_back() {
        let at = |id: Id, offset: u8, bits: u8| [&[0, offset][..], &header(id), &[0, bits]].concat();
        let mut effects = Effects::default();
        // As a router asks for the MAC address of a next hop: the register is an argument, and restored.
        effects.nicira(27, &at(register(112), 0, 128));
        effects.nicira(27, &at(register(111), 0, 128));
        effects.nicira(28, &at(register(112), 0, 128));
        effects.nicira(28, &at(register(112), 0, 128));
        assert!(effects.carries && effects.other.is_empty());
        effects.nicira(27, &at(register(111), 96, 32));
        effects.nicira(28, &at(register(0), 0, 32));
        assert!(effects.other.is_empty());
        effects.nicira(28, &at(register(14), 0, 32));
        assert!(effects.other.contains(Target::Ingress), "of nothing");
    }

    #[test]
    fn a_translation_of_the_destination_is_told_from_others() {
        let nat = |flags: u8| {
            let mut effects = Effects::default();
            effects.nicira(36, &[0, 0, 0, flags, 0, 0]);
            (effects.translates, effects.translates_destination)
        };
        assert_eq!((nat(0), nat(1), nat(2)), ((true, false), (true, false), (true, true)));
    }
}
