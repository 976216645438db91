//! Which fields a flow's actions write, as far as the scopes of changes depend on it. Actions in clones count as well: they are
//! done to a packet that goes on.

use std::net::Ipv6Addr;

use api::MacAddr;

use super::oxm::{self, Field};
use super::targets::{Part, Target, Targets, part, register_target, target};
use super::{u16_at, u32_at};

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
    /// Bit for each of the tables of [`Self::calls`].
    calls: u128,
    registers: [u32; 16],
    /// Bit for each register that gets a constant, other than 0, whole.
    known: u16,
    /// Bit for each register that is set to 0 whole.
    zeroed: u16,
    /// What was pushed, and how often.
    stack: [Option<Part>; 4],
    pushed: usize,
}

/// First table that is no stage of a logical pipeline but is called by those (OVN, `OFTABLE_SAVE_INPORT` and following, in
/// controller/lflow.h).
pub const FIRST_CALLED: u8 = 64;
/// First table of which [`Effects::calls`] does not tell.
pub const FIRST_UNTOLD: u8 = FIRST_CALLED + 128;

impl Effects {
    /// Tables from [`FIRST_CALLED`] on, and before [`FIRST_UNTOLD`], that packets are resubmitted to.
    pub fn calls(&self) -> impl Iterator<Item = u8> + use<> {
        let calls = self.calls;
        (0..128).filter(move |at| calls & 1 << at != 0).map(|at| FIRST_CALLED + at)
    }

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
            // NXAST_RESUBMIT_TABLE, NXAST_RESUBMIT_TABLE_CT: port, table.
            14 | 44 => self.call(body.get(2)),
            18 | 21 => self.lowers_ttl = true,
            // NXAST_STACK_PUSH, NXAST_STACK_POP: offset, header, bits.
            27 => self.push(part(u32_at(body, 2), u16_at(body, 0), u16_at(body, 6))),
            28 => {
                let from = self.pop();
                self.copy(from, part(u32_at(body, 2), u16_at(body, 0), u16_at(body, 6)));
            }
            // NXAST_REG_LOAD2: padding, field.
            33 => self.set_fields(body.get(6..).unwrap_or_default()),
            // NXAST_CT: flags, zone (6 bytes), table that packets go on in, or 255.
            35 => self.call(body.get(8)),
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

    fn call(&mut self, table: Option<&u8>) {
        let called = table.and_then(|table| table.checked_sub(FIRST_CALLED));
        self.calls |= called.and_then(|at| 1_u128.checked_shl(at.into())).unwrap_or_default();
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

#[cfg(test)]
mod tests;
