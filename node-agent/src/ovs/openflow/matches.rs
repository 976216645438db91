//! Parser of a flow's match, as far as it tells which packets cannot match. A field that is not known here, or that is masked,
//! counts as absent: the flow may then match more than it does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::MacAddr;

use super::fields::LogicalPort;
use super::oxm::{self, Field};

/// What a match says of an address of the packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Address {
    /// The address is not matched.
    #[default]
    Any,
    /// A prefix, or bits.
    Part,
    /// The whole address.
    Whole(IpAddr),
}

impl Address {
    /// The address, if it is given whole.
    pub fn whole(self) -> Option<IpAddr> {
        match self {
            Self::Whole(address) => Some(address),
            Self::Any | Self::Part => None,
        }
    }
}

/// Necessary conditions of a match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Match {
    /// False when the match could not be read to its end.
    pub complete: bool,
    /// Number of fields, known or not.
    pub fields: u8,
    /// OpenFlow port on which the packet came in.
    pub in_port: Option<u32>,
    /// Key of OVN's logical datapath (`metadata`).
    pub datapath: Option<u64>,
    /// Ethernet type.
    pub eth_type: Option<u16>,
    /// IP protocol.
    pub ip_proto: Option<u8>,
    /// IP source.
    pub source: Address,
    /// IP destination.
    pub destination: Address,
    /// Destination port of TCP, UDP or SCTP.
    pub port: Option<u16>,
    /// Ethernet source.
    pub eth_source: Option<MacAddr>,
    /// Ethernet destination.
    pub eth_destination: Option<MacAddr>,
    /// Only packets to a group: Ethernet or IP multicast, or broadcast.
    pub group: bool,
    /// Only packets with a VLAN tag.
    pub tagged: bool,
    /// Says something of VLAN tags.
    pub vlan: bool,
    /// Only fragments.
    pub fragment: bool,
    /// Id of a conjunction (`conj_id`).
    pub conjunction: Option<u32>,
    registers: [u32; 16],
    /// Bit for each register that is matched whole.
    known: u16,
}

impl Match {
    /// Parses a list of fields.
    pub fn read(mut bytes: &[u8]) -> Self {
        let mut found = Self::default();
        while let Some((field, rest)) = Field::split(bytes) {
            found.fields = found.fields.saturating_add(1);
            found.take(&field);
            bytes = rest;
        }
        found.complete = bytes.is_empty();
        found
    }

    fn take(&mut self, field: &Field<'_>) {
        let number = || field.whole();
        let id = field.id;
        if let Some((first, count)) = oxm::registers(id) {
            (0..count).for_each(|word| self.take_register(first + word, field.word(word)));
        } else if id == oxm::METADATA {
            self.datapath = number().and_then(narrow);
        } else if oxm::IN_PORT.contains(&id) {
            self.in_port = number().and_then(narrow);
        } else if oxm::ETH_TYPE.contains(&id) {
            self.eth_type = number().and_then(narrow);
        } else if oxm::IP_PROTO.contains(&id) {
            self.ip_proto = number().and_then(narrow);
        } else if oxm::IPV4_SRC.contains(&id) || oxm::IPV6_SRC.contains(&id) {
            self.source = address(field);
        } else if oxm::IPV4_DST.contains(&id) || oxm::IPV6_DST.contains(&id) {
            self.destination = address(field);
            self.group |= is_group(field);
        } else if oxm::PORT_DST.contains(&id) {
            self.port = number().and_then(narrow);
        } else if oxm::ETH_SRC.contains(&id) {
            self.eth_source = mac(field);
        } else if oxm::ETH_DST.contains(&id) {
            self.eth_destination = mac(field);
            // The lowest bit of the first byte (IEEE 802).
            self.group |= field.masked().next().is_some_and(|(byte, _)| byte & 1 != 0);
        } else if oxm::VLAN.contains(&id) {
            self.vlan = true;
            self.tagged |= field.masked().any(|(byte, _)| byte != 0);
        } else if id == oxm::IP_FRAG {
            self.fragment |= field.masked().any(|(byte, _)| byte != 0);
        } else if id == oxm::CONJUNCTION {
            self.conjunction = number().and_then(narrow);
        }
    }

    fn take_register(&mut self, at: usize, (value, mask): (u32, u32)) {
        if let (Some(register), u32::MAX) = (self.registers.get_mut(at), mask) {
            *register = value;
            self.known |= 1 << at;
        }
    }

    /// Value of a register that is matched whole.
    pub fn register(&self, at: usize) -> Option<u32> {
        self.registers.get(at).copied().filter(|_| at < 16 && self.known & 1 << at != 0)
    }

    /// Value of four registers that are all matched whole, as an IPv6 address.
    pub fn registers(&self, first: usize) -> Option<Ipv6Addr> {
        let mut bits = 0;
        for at in first..first + 4 {
            bits = bits << 32 | u128::from(self.register(at)?);
        }
        Some(Ipv6Addr::from_bits(bits))
    }

    /// A logical port that is matched: register 14 (ingress) or 15 (egress) with the datapath; never 0, which is none.
    pub fn logical_port(&self, register: usize) -> Option<LogicalPort> {
        let port = self.register(register).filter(|port| *port != 0)?;
        Some(LogicalPort { datapath: self.datapath?, port })
    }

    /// True when no packet of TCP or UDP matches that is whole and to a single receiver.
    pub fn is_never_cached(&self) -> bool {
        let other_type = self.eth_type.is_some_and(|kind| ![IPV4, IPV6].contains(&kind));
        let other_protocol = self.ip_proto.is_some_and(|protocol| ![TCP, UDP].contains(&protocol));
        other_type || other_protocol || self.group || self.fragment
    }
}

/// Ethernet types (IANA).
pub const IPV4: u16 = 0x0800;
/// See [`IPV4`].
pub const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The number, if it fits.
fn narrow<T: TryFrom<u128>>(number: u128) -> Option<T> {
    number.try_into().ok()
}

fn mac(field: &Field<'_>) -> Option<MacAddr> {
    field.whole()?;
    field.value.try_into().ok().map(MacAddr)
}

fn address(field: &Field<'_>) -> Address {
    let whole = field.whole().and_then(|number| match field.value.len() {
        4 => narrow(number).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        16 => Some(IpAddr::V6(Ipv6Addr::from_bits(number))),
        _ => None,
    });
    whole.map_or(Address::Part, Address::Whole)
}

/// True when every address that matches is of a group: 224.0.0.0/4, 255.255.255.255, ff00::/8.
fn is_group(field: &Field<'_>) -> bool {
    let first = field.masked().next();
    match field.value.len() {
        4 => {
            let multicast = first.is_some_and(|(byte, mask)| mask & 0xf0 == 0xf0 && byte & 0xf0 == 0xe0);
            multicast || field.masked().all(|(byte, _)| byte == 0xff)
        }
        _ => first.is_some_and(|(byte, mask)| mask == 0xff && byte == 0xff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(class: u16, number: u8, value: &[u8], mask: &[u8]) -> Vec<u8> {
        let masked = u8::from(!mask.is_empty());
        let length = u8::try_from(value.len() + mask.len()).unwrap();
        [&class.to_be_bytes()[..], &[number << 1 | masked, length], value, mask].concat()
    }

    #[test]
    fn registers_are_read_alone_and_as_parts_of_wider_ones() {
        let mut bytes = field(1, 14, &[0, 0, 0, 7], &[]);
        bytes.extend(field(0x8001, 0, &[10, 0, 0, 1, 0, 0, 0, 0], &[255, 255, 255, 255, 0, 0, 0, 0]));
        bytes.extend(field(1, 112, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], &[]));
        let found = Match::read(&bytes);
        assert!(found.complete);
        assert_eq!(
            (found.register(14), found.register(0), found.register(1)),
            (Some(7), Some(0x0a00_0001), None)
        );
        assert_eq!(found.registers(4), Some("fd00::9".parse().unwrap()));
        assert_eq!(found.registers(0), None);
        assert_eq!(found.logical_port(14), None, "without a datapath");
    }

    #[test]
    fn addresses_are_whole_or_parts_and_groups_are_told() {
        let read = |number, value: &[u8], mask: &[u8]| Match::read(&field(0x8000, number, value, mask));
        assert_eq!(read(11, &[10, 0, 0, 1], &[]).source, Address::Whole("10.0.0.1".parse().unwrap()));
        assert_eq!(read(12, &[10, 0, 0, 0], &[255, 0, 0, 0]).destination, Address::Part);
        assert_eq!(
            read(12, &[10, 0, 0, 1], &[255; 4]).destination,
            Address::Whole("10.0.0.1".parse().unwrap())
        );
        assert!(read(12, &[224, 0, 0, 0], &[240, 0, 0, 0]).group);
        assert!(!read(12, &[192, 0, 0, 0], &[192, 0, 0, 0]).group);
        assert!(read(12, &[255; 4], &[]).group);
        assert!(read(3, &[1, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0]).group);
        assert!(!read(3, &[0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0]).group);
        let v6 = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert!(read(27, &v6, &[]).group);
        assert!(read(27, &v6, &[255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).group);
    }

    #[test]
    fn what_no_cached_packet_is_is_told() {
        let never = |bytes: &[u8]| Match::read(bytes).is_never_cached();
        assert!(never(&field(0x8000, 5, &[8, 6], &[])), "ARP");
        assert!(!never(&field(0x8000, 5, &[8, 0], &[])));
        assert!(never(&field(0x8000, 10, &[1], &[])) && !never(&field(0x8000, 10, &[6], &[])));
        let tagged = |value: &[u8]| Match::read(&field(0x8000, 6, value, &[0x10, 0]));
        assert!(tagged(&[0x10, 0]).tagged && !tagged(&[0, 0]).tagged);
        assert!(!tagged(&[0x10, 0]).is_never_cached(), "it may be of a physical network");
        assert!(never(&field(1, 26, &[2], &[2])) && !never(&field(1, 26, &[0], &[2])));
        assert!(!never(&[]));
    }

    #[test]
    fn what_is_cut_short_is_not_complete() {
        assert!(!Match::read(&[0x80, 0, 0, 4, 0, 0]).complete);
        assert!(Match::read(&[]).complete);
    }
}
