//! The inner packets that the flow cache may carry: TCP and UDP over IPv4 without options or IPv6 without extension headers, whole
//! and with consistent lengths. Anything else is for OVS, and a [`Reason`] says why.
//!
//! Offsets are constants to the compiler once a parser is inlined into a program, which keeps the programs short.

use super::{TCP, UDP, Window};
use crate::layout::{
    flow::{Print, Tuple4, Tuple6},
    reason::Reason,
};

/// TCP flag (RFC 9293, 3.1).
pub const FIN: u8 = 0x01;
/// TCP flag (RFC 9293, 3.1).
pub const SYN: u8 = 0x02;
/// TCP flag (RFC 9293, 3.1).
pub const RST: u8 = 0x04;
/// TCP flag (RFC 9293, 3.1).
pub const ACK: u8 = 0x10;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;

/// A packet that the cache may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<T> {
    /// Addresses, ports and protocol.
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
    /// IPv4: identification, flags and fragment offset. IPv6: version, traffic class and flow label. In wire order.
    pub word: u32,
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

    /// TCP with SYN, FIN or RST: for OVS, see [`crate::decide::connection`].
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
        return Err(if first >> 4 == 4 && first & 0xf > 5 {
            Reason::IpOptions
        } else {
            Reason::BadIpVersion
        });
    }
    if u16::from_be(packet.u16(at + 6)) & 0x3fff != 0 {
        return Err(Reason::IpFragment);
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
        side: 0,
        _pad: 0,
    };
    let word = packet.u32(at + 4);
    Ok(Flow { tuple, ttl, tos: packet.u8(at + 1), flags, length, headers: 20 + headers, word })
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
        return Err(if protocol == 44 { Reason::IpFragment } else { Reason::IpOptions });
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
        side: 0,
        _pad: 0,
    };
    // The traffic class is across the first two bytes.
    let tos = packet.u8(at) << 4 | packet.u8(at + 1) >> 4;
    Ok(Flow { tuple, ttl, tos, flags, length, headers: 40 + headers, word: packet.u32(at) })
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

/// What tells the packet from others of its flow. `transport`: offset of the TCP or UDP header; `length`: bytes from the IP header to
/// the end.
#[inline(always)]
pub fn print<W: Window>(packet: &W, transport: u32, protocol: u8, length: u32) -> Print {
    if protocol == TCP {
        // The parser has seen the first 20 bytes.
        if !packet.has(transport + 12) {
            return Print { length, first: 0, second: 0 };
        }
        return Print {
            length,
            first: u32::from_be(packet.u32(transport + 4)),
            second: packet.u32(transport + 8),
        };
    }
    if !packet.has(transport + 16) {
        return Print { length, first: 0, second: 0 };
    }
    Print { length, first: packet.u32(transport + 8), second: packet.u32(transport + 12) }
}
