//! The outer headers of OVN's Geneve packets, in the one form that the flow cache takes and writes.

use super::{IPV4, UDP, Window, checksum::low_half, fold};
use crate::layout::reason::Reason;

/// The outer headers of a packet as OVN's Geneve has them: IPv4 without options, one option of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Source address, wire order.
    pub source: u32,
    /// Destination address, wire order.
    pub destination: u32,
    /// ECN bits.
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

/// Bytes up to the end of the outer UDP header's ports, by which [`may_be_outer`] judges.
const PORTS: u32 = 38;

/// Whether a packet can be one that [`outer`] reads, by what is in front of its UDP payload. `port`: UDP port of Geneve.
#[inline(always)]
pub fn may_be_outer<W: Window>(packet: &W, port: u16) -> bool {
    packet.has(PORTS)
        && packet.u16(12) == IPV4.to_be()
        && packet.u8(23) == UDP
        && packet.u16(36) == port.to_be()
}

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

/// The fields of the outer headers that differ from packet to packet, in wire order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Total length of the IPv4 header.
    pub length: u16,
    /// Checksum of the IPv4 header.
    pub checksum: u16,
    /// Length of the UDP header.
    pub datagram: u16,
}

/// The fields for a packet of `total` bytes from the outer IPv4 header on, at most 65,535. `sum`: that of the header without them;
/// `ecn`: the outer ECN bits.
#[inline(always)]
pub const fn fields(sum: u32, total: u32, ecn: u8) -> Fields {
    let length = low_half(total).to_be();
    let sum = fold(sum + length as u32 + (ecn as u16).to_be() as u32);
    Fields { length, checksum: !low_half(sum), datagram: low_half(total.wrapping_sub(20)).to_be() }
}
