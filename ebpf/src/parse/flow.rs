//! Parsing for the flow cache: the packets it may carry, in the one form each that it knows. Everything else is for
//! OVS, with the reason (law 2 of the design).
//!
//! All offsets are constants to the compiler once this is inlined, which is what keeps the programs short.

use super::{TCP, UDP};
use crate::{
    flow::{Tuple4, Tuple6},
    reason::Reason,
};

/// TCP flags (RFC 9293, 3.1).
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// EtherTypes.
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;

/// The front of a packet, from its Ethernet header on. Numbers are in wire order (see [`crate::flow`]).
///
/// [`Window::has`] is asked before the others: they may be called only for bytes in front of an end that it confirmed.
pub trait Window {
    /// Whether the window has `end` bytes.
    fn has(&self, end: u32) -> bool;
    /// The byte at an offset.
    fn u8(&self, at: u32) -> u8;
    /// Two bytes at an even offset.
    fn u16(&self, at: u32) -> u16;
    /// Four bytes at an even offset.
    fn u32(&self, at: u32) -> u32;
}

/// For tests and user space. Bytes that are not there are 0.
impl Window for &[u8] {
    fn has(&self, end: u32) -> bool {
        usize::try_from(end).is_ok_and(|end| end <= self.len())
    }

    fn u8(&self, at: u32) -> u8 {
        usize::try_from(at).ok().and_then(|at| self.get(at)).copied().unwrap_or(0)
    }

    fn u16(&self, at: u32) -> u16 {
        u16::from_ne_bytes([self.u8(at), self.u8(at.wrapping_add(1))])
    }

    fn u32(&self, at: u32) -> u32 {
        let byte = |more| self.u8(at.wrapping_add(more));
        u32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)])
    }
}

/// A packet that the cache may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<T> {
    pub tuple: T,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// TCP flags; 0 for UDP.
    pub flags: u8,
    /// Bytes from the IP header to the end.
    pub length: u32,
    /// Bytes of IP and TCP or UDP headers.
    pub headers: u32,
}

impl<T> Flow<T> {
    /// The ECN bits.
    #[inline(always)]
    pub const fn ecn(&self) -> u8 {
        self.tos & 3
    }

    /// The ECN bits that OVS gives the outer header: those of the packet, but not a congestion mark, which stays inside (RFC 6040, 4.1,
    /// and tunnel.c of OVS).
    #[inline(always)]
    pub const fn outer_ecn(&self) -> u8 {
        if self.ecn() == 3 { 2 } else { self.ecn() }
    }

    /// The DSCP, in the upper six bits.
    #[inline(always)]
    pub const fn dscp(&self) -> u8 {
        self.tos & 0xfc
    }

    /// TCP with SYN, FIN or RST: for OVS, and the end of what is cached of the connection.
    #[inline(always)]
    pub const fn changes_connection(&self) -> bool {
        self.flags & (FIN | SYN | RST) != 0
    }
}

/// Reads an IPv4 packet whose header is at `at` and that has `length` bytes from there to the end.
///
/// # Errors
/// Why the flow cache does not carry it.
#[inline(always)]
pub fn ipv4<W: Window>(packet: &W, at: u32, length: u32) -> Result<Flow<Tuple4>, Reason> {
    // With the first eight bytes of what is behind it, which TCP and UDP both have.
    if !packet.has(at + 28) {
        return Err(Reason::TruncatedIp);
    }
    let first = packet.u8(at);
    if first != 0x45 {
        return Err(if first >> 4 == 4 && first & 0xf > 5 { Reason::Options } else { Reason::BadIpVersion });
    }
    if u16::from_be(packet.u16(at + 6)) & 0x3fff != 0 {
        return Err(Reason::PodFragment);
    }
    if u32::from(u16::from_be(packet.u16(at + 2))) != length {
        return Err(Reason::OddLength);
    }
    let ttl = packet.u8(at + 8);
    if ttl <= 1 {
        return Err(Reason::LowTtl);
    }
    let protocol = packet.u8(at + 9);
    let (flags, headers) = transport(packet, protocol, at + 20, length.wrapping_sub(20))?;
    let (source_port, destination_port) = ports(packet.u32(at + 20));
    let tuple = Tuple4 {
        source: packet.u32(at + 12),
        destination: packet.u32(at + 16),
        source_port,
        destination_port,
        protocol,
        direction: 0,
        _pad: 0,
    };
    Ok(Flow { tuple, ttl, tos: packet.u8(at + 1), flags, length, headers: 20 + headers })
}

/// Reads an IPv6 packet whose header is at `at` and that has `length` bytes from there to the end.
///
/// # Errors
/// Why the flow cache does not carry it.
#[inline(always)]
pub fn ipv6<W: Window>(packet: &W, at: u32, length: u32) -> Result<Flow<Tuple6>, Reason> {
    if !packet.has(at + 48) {
        return Err(Reason::TruncatedIp);
    }
    if packet.u8(at) >> 4 != 6 {
        return Err(Reason::BadIpVersion);
    }
    if u32::from(u16::from_be(packet.u16(at + 4))).wrapping_add(40) != length {
        return Err(Reason::OddLength);
    }
    let ttl = packet.u8(at + 7);
    if ttl <= 1 {
        return Err(Reason::LowTtl);
    }
    let protocol = packet.u8(at + 6);
    // Hop-by-hop 0, routing 43, fragment 44, destination options 60, authentication 51 (RFC 8200, 4.1).
    if matches!(protocol, 0 | 43 | 44 | 51 | 60) {
        return Err(if protocol == 44 { Reason::PodFragment } else { Reason::Options });
    }
    let (flags, headers) = transport(packet, protocol, at + 40, length.wrapping_sub(40))?;
    let address = |at| [packet.u32(at), packet.u32(at + 4), packet.u32(at + 8), packet.u32(at + 12)];
    let (source_port, destination_port) = ports(packet.u32(at + 40));
    let tuple = Tuple6 {
        source: address(at + 8),
        destination: address(at + 24),
        source_port,
        destination_port,
        protocol,
        direction: 0,
        _pad: 0,
    };
    // The traffic class is across the first two bytes.
    let tos = packet.u8(at) << 4 | packet.u8(at + 1) >> 4;
    Ok(Flow { tuple, ttl, tos, flags, length, headers: 40 + headers })
}

/// The two ports in one word of the packet.
#[inline(always)]
const fn ports(word: u32) -> (u16, u16) {
    let [a, b, c, d] = word.to_ne_bytes();
    (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]))
}

/// TCP flags, and the length of the header.
#[inline(always)]
fn transport<W: Window>(packet: &W, protocol: u8, at: u32, length: u32) -> Result<(u8, u32), Reason> {
    if protocol == UDP {
        if u32::from(u16::from_be(packet.u16(at + 4))) != length {
            return Err(Reason::BadUdpLength);
        }
        return Ok((0, 8));
    }
    if protocol != TCP {
        return Err(Reason::OtherProtocol);
    }
    if !packet.has(at + 20) {
        return Err(Reason::BadTcpHeader);
    }
    let headers = u32::from(packet.u8(at + 12) >> 4) * 4;
    if headers < 20 || headers > length {
        return Err(Reason::BadTcpHeader);
    }
    let flags = packet.u8(at + 13);
    if flags & (FIN | SYN | RST | ACK) == 0 {
        return Err(Reason::TcpFlags);
    }
    Ok((flags, headers))
}

/// The outer headers of a packet as OVN's Geneve has them: IPv4 without options, one option of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    pub source: u32,
    pub destination: u32,
    pub ecn: u8,
    /// Virtual network identifier, as a number.
    pub vni: u32,
    /// Data of OVN's option.
    pub option: u32,
    /// EtherType of the inner frame, as a number.
    pub inner: u16,
    /// The outer UDP checksum is 0.
    pub plain: bool,
}

/// OVN's option as OVS writes it: class 0x0102, type 0x80 (critical), one word of data (ovn-architecture(7)).
const OVN_OPTION: u32 = 0x0102_8001;

/// Bytes of the outer headers up to the inner frame's EtherType, and of the shortest packet behind it that the flow cache
/// carries: IPv4 and UDP. What is asked for once need not be asked for again.
const OUTER: u32 = 72 + 28;

/// Reads the outer headers of a packet of `length` bytes from its Ethernet header on. `port`: UDP port of Geneve.
/// `Ok(None)`: not Geneve over IPv4 in this form, for the general parser to look at.
///
/// # Errors
/// It is Geneve, but not as the flow cache carries it.
#[inline(always)]
pub fn outer<W: Window>(packet: &W, length: u32, port: u16) -> Result<Option<Outer>, Reason> {
    if !packet.has(OUTER)
        || packet.u16(12) != IPV4.to_be()
        || packet.u8(14) != 0x45
        || packet.u8(23) != UDP
        || u16::from_be(packet.u16(20)) & 0x3fff != 0
        || port == 0
        || packet.u16(36) != port.to_be()
    {
        return Ok(None);
    }
    // Version 0 with two words of options, perhaps the flag bit that says that one is critical (RFC 8926, 3.4), then
    // the protocol type: a frame of Ethernet.
    if (packet.u32(42) | 0x0040_0000_u32.to_be()) != 0x0240_6558_u32.to_be()
        || packet.u32(50) != OVN_OPTION.to_be()
    {
        return Err(Reason::OtherOptions);
    }
    let total = u32::from(u16::from_be(packet.u16(16)));
    let datagram = u32::from(u16::from_be(packet.u16(38)));
    if total.wrapping_add(14) != length || datagram.wrapping_add(20) != total {
        return Err(Reason::OddLength);
    }
    Ok(Some(Outer {
        source: packet.u32(26),
        destination: packet.u32(30),
        ecn: packet.u8(15) & 3,
        vni: u32::from_be(packet.u32(46)) >> 8,
        option: packet.u32(54),
        inner: u16::from_be(packet.u16(70)),
        plain: packet.u16(40) == 0,
    }))
}

/// Whether the checksum of the outer IPv4 header is right.
#[inline(always)]
pub fn outer_sum_is_right<W: Window>(packet: &W) -> bool {
    let mut sum = 0;
    let mut at = 14;
    while at < 34 {
        sum += u64::from(packet.u32(at));
        at += 4;
    }
    // Five numbers of 32 bits: two halves and less than 5. They are added up to 0xffff, once or twice: 0 does not occur, as
    // the header's first byte is not 0.
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum == 0xffff || sum == 0x1_fffe
}

/// The two halves of four bytes, added.
#[inline(always)]
pub const fn word_sum(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

/// Folds carries in: the one's complement sum as 16 bits. In wire order as its parts were, which RFC 1071 (2.B) allows.
#[inline(always)]
pub const fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}
