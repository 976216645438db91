//! Packets as they are sent: every byte is chosen here, so that the same input can be given to every path.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::{Sum, fix_ipv4, pseudo_header};
use testbed::tools::packets::{Frame, GSO_ECN, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM, Offload};

/// Protocol numbers (IANA).
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMP6: u8 = 58;

/// TCP flags (RFC 9293, 3.1; RFC 3168 for the last two).
pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const URG: u8 = 0x20;
pub(super) const ECE: u8 = 0x40;
pub(super) const CWR: u8 = 0x80;

/// What is behind the IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    Udp,
    Tcp {
        flags: u8,
        options: Vec<u8>,
        urgent: u16,
    },
    /// ICMP with type, code and the four bytes behind the checksum.
    Icmp {
        kind: u8,
        code: u8,
        rest: [u8; 4],
    },
    /// Nothing but the payload: another protocol, or the rest of a fragmented packet.
    Bare(u8),
}

/// How the checksum of TCP or UDP is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Right,
    /// One bit is not as it ought to be.
    Wrong,
    /// UDP without one.
    Zero,
    /// Left to the device: the field has the sum of the pseudo-header.
    Offloaded,
}

/// A packet of a pod.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) macs: [[u8; 6]; 2],
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) ports: [u16; 2],
    pub(super) upper: Upper,
    pub(super) payload: Vec<u8>,
    pub(super) check: Check,
    pub(super) ttl: u8,
    /// DSCP and ECN.
    pub(super) tos: u8,
    /// Identification of IPv4, flow label of IPv6.
    pub(super) id: u16,
    /// Flow label of IPv6 (20 bits) where it is not the identification.
    pub(super) label: Option<u32>,
    pub(super) dont_fragment: bool,
    /// The reserved flag of IPv4.
    pub(super) reserved: bool,
    /// IPv4 options, or a complete extension header of IPv6 that has the protocol `extension`.
    pub(super) options: Vec<u8>,
    pub(super) extension: u8,
    /// Offset in bytes, and whether more come.
    pub(super) fragment: Option<(u16, bool)>,
    /// Bytes behind the IP packet.
    pub(super) trailer: Vec<u8>,
    /// VLAN tags in front of it.
    pub(super) tags: Vec<u16>,
    /// Payload bytes of a segment, where the device is to segment.
    pub(super) segment: Option<u16>,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
}

impl Packet {
    /// A plain packet; `macs`: destination, source.
    pub(super) fn new(
        macs: [[u8; 6]; 2],
        source: IpAddr,
        destination: IpAddr,
        ports: [u16; 2],
        upper: Upper,
    ) -> Self {
        Self {
            macs,
            source,
            destination,
            ports,
            upper,
            payload: b"payload.".to_vec(),
            check: Check::Right,
            ttl: 64,
            tos: 0,
            id: 1,
            label: None,
            dont_fragment: true,
            reserved: false,
            options: Vec::new(),
            extension: 0,
            fragment: None,
            trailer: Vec::new(),
            tags: Vec::new(),
            segment: None,
            sequence: 1_000_001,
            acknowledged: 2_000_001,
        }
    }

    fn protocol(&self) -> u8 {
        match (&self.upper, self.source) {
            (Upper::Udp, _) => UDP,
            (Upper::Tcp { .. }, _) => TCP,
            (Upper::Icmp { .. }, IpAddr::V4(_)) => ICMP,
            (Upper::Icmp { .. }, IpAddr::V6(_)) => ICMP6,
            (Upper::Bare(protocol), _) => *protocol,
        }
    }

    /// The IP packet alone.
    pub(super) fn ip(&self) -> Vec<u8> {
        let upper = self.upper();
        let mut bytes = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.ipv4(source, destination, upper.len()),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.ipv6(source, destination, upper.len()),
            _ => Vec::new(),
        };
        bytes.extend(upper);
        bytes
    }

    /// The complete frame with what the kernel is to do about it.
    pub(super) fn frame(&self) -> Frame {
        let mut bytes = self.macs.concat();
        for tag in &self.tags {
            bytes.extend([0x81, 0x00]);
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend(if self.source.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        let ip = self.ip();
        let start = bytes.len() + ip.len() - self.upper().len();
        bytes.extend(ip);
        bytes.extend(&self.trailer);
        let mut offload = Offload::default();
        if self.check == Check::Offloaded {
            offload.flags = NEEDS_CHECKSUM;
            offload.checksum_start = number(start);
            offload.checksum_offset = if self.upper == Upper::Udp { 6 } else { 16 };
        }
        if let Some(segment) = self.segment {
            offload.gso_size = segment;
            offload.headers = number(bytes.len() - self.trailer.len() - self.payload.len());
            offload.gso_type = match (&self.upper, self.source) {
                (Upper::Udp, _) => GSO_UDP,
                (_, IpAddr::V4(_)) => GSO_TCP4,
                (_, IpAddr::V6(_)) => GSO_TCP6,
            };
            if matches!(&self.upper, Upper::Tcp { flags, .. } if flags & CWR != 0) {
                offload.gso_type |= GSO_ECN;
            }
        }
        Frame { bytes, offload }
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr, behind: usize) -> Vec<u8> {
        let words = 5 + self.options.len() / 4;
        let mut bytes = vec![0x40 | u8::try_from(words).unwrap_or(15), self.tos];
        bytes.extend(number(words * 4 + behind).to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        let (offset, more) = self.fragment.unwrap_or_default();
        let flags = u16::from(self.reserved) << 15
            | u16::from(self.dont_fragment && self.fragment.is_none()) << 14
            | u16::from(more) << 13;
        bytes.extend((flags | (offset / 8)).to_be_bytes());
        bytes.extend([self.ttl, self.protocol(), 0, 0]);
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
        bytes.extend(&self.options);
        fix_ipv4(&mut bytes);
        bytes
    }

    fn ipv6(&self, source: Ipv6Addr, destination: Ipv6Addr, behind: usize) -> Vec<u8> {
        let mut between = self.options.clone();
        let mut next = self.protocol();
        if let Some(first) = between.first_mut() {
            *first = std::mem::replace(&mut next, self.extension);
        }
        if let Some((offset, more)) = self.fragment {
            // Fragment header (RFC 8200, 4.5).
            let place = (offset & !7) | u16::from(more);
            between.extend([std::mem::replace(&mut next, 44), 0]);
            between.extend(place.to_be_bytes());
            between.extend(u32::from(self.id).to_be_bytes());
        }
        let label = self.label.unwrap_or(self.id.into()) & 0xf_ffff;
        let word = 6 << 28 | u32::from(self.tos) << 20 | label;
        let mut bytes = word.to_be_bytes().to_vec();
        bytes.extend(number(between.len() + behind).to_be_bytes());
        bytes.extend([next, self.ttl]);
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
        bytes.extend(between);
        bytes
    }

    /// TCP, UDP or ICMP with the payload.
    pub(super) fn upper(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let place = match &self.upper {
            Upper::Udp => {
                bytes.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
                bytes.extend(number(8 + self.payload.len()).to_be_bytes());
                bytes.extend([0, 0]);
                6
            }
            Upper::Tcp { flags, options, urgent } => {
                bytes.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
                bytes.extend(self.sequence.to_be_bytes());
                bytes.extend(self.acknowledged.to_be_bytes());
                let words = u8::try_from(5 + options.len() / 4).unwrap_or(15);
                bytes.extend([words << 4, *flags, 0xff, 0xff, 0, 0]);
                bytes.extend(urgent.to_be_bytes());
                bytes.extend(options);
                16
            }
            Upper::Icmp { kind, code, rest } => {
                bytes.extend([*kind, *code, 0, 0]);
                bytes.extend(rest);
                2
            }
            Upper::Bare(_) => return self.payload.clone(),
        };
        bytes.extend(&self.payload);
        let pseudo = pseudo_header(self.source, self.destination, self.protocol(), bytes.len());
        let pseudo = if self.protocol() == ICMP { Sum::default() } else { pseudo };
        let sum = pseudo.clone().add(&bytes);
        let right = if self.upper == Upper::Udp { sum.complement_not_zero() } else { sum.complement() };
        let sum = match self.check {
            Check::Right => right,
            Check::Wrong => right ^ 0x0400,
            Check::Zero => 0,
            Check::Offloaded => pseudo.folded(),
        };
        bytes[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

/// A length as headers have it; no packet here is longer than one can be.
fn number(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}
