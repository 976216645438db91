//! Ethernet, VLAN tags, IPv4 and IPv6.

use super::Packet;
use crate::layout::{maps::mapped, reason::Reason};

/// VLAN tags that are skipped (802.1ad outer, 802.1Q inner).
const MAX_TAGS: u32 = 2;

/// IPv6 extension headers that are skipped.
pub const MAX_EXTENSION_HEADERS: u32 = 6;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;

/// The network layer of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Source address, IPv4 in mapped form.
    pub source: [u8; 16],
    /// Destination address, IPv4 in mapped form.
    pub destination: [u8; 16],
    /// IP protocol number of the payload (behind IPv6 extension headers).
    pub protocol: u8,
    /// A fragment, first or later: what follows is no complete header chain.
    pub fragment: bool,
    /// Offset of the IP payload in the packet.
    pub payload: u32,
    /// Offset of the first byte behind the IP payload. Ethernet padding is beyond it.
    pub end: u32,
}

/// Reads the network layer of the frame that begins at `offset`. `None` = not IP (ARP, LLDP, …).
///
/// `aggregate`: the packet stands for several, and the lengths in its headers need not be those of the whole (above
/// 65,535 bytes they are 0); then the packet's own length counts.
///
/// # Errors
/// The first thing that is wrong with the headers.
#[inline(always)]
pub fn network<P: Packet>(packet: &P, offset: u32, aggregate: bool) -> Result<Option<Network>, Reason> {
    let Some(mut ethertype) = ethertype(packet, offset.wrapping_add(12)) else {
        return Err(Reason::TruncatedEthernet);
    };
    let mut at = offset.wrapping_add(14);
    let mut tags = 0;
    while tags < MAX_TAGS && (ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ) {
        let Some(inner) = self::ethertype(packet, at.wrapping_add(2)) else {
            return Err(Reason::TruncatedEthernet);
        };
        ethertype = inner;
        at = at.wrapping_add(4);
        tags += 1;
    }
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(packet, at, aggregate).map(Some),
        ETHERTYPE_IPV6 => ipv6(packet, at, aggregate).map(Some),
        _ => Ok(None),
    }
}

#[inline(always)]
fn ethertype<P: Packet>(packet: &P, at: u32) -> Option<u16> {
    packet.read::<2>(at).map(u16::from_be_bytes)
}

#[inline(always)]
fn ipv4<P: Packet>(packet: &P, at: u32, aggregate: bool) -> Result<Network, Reason> {
    let Some(header) = packet.read::<20>(at) else { return Err(Reason::TruncatedIp) };
    if header[0] >> 4 != 4 {
        return Err(Reason::BadIpVersion);
    }
    let header_len = u32::from(header[0] & 0x0f) * 4;
    if header_len < 20 {
        return Err(Reason::BadIpHeaderLength);
    }
    let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
    let end = if aggregate {
        packet.len()
    } else {
        if total < header_len {
            return Err(Reason::BadIpLength);
        }
        at.wrapping_add(total)
    };
    let payload = at.wrapping_add(header_len);
    if end > packet.len() || payload > end {
        return Err(Reason::TruncatedIp);
    }
    // More fragments, or an offset (RFC 791: 1 reserved bit, DF, MF, 13 bits of offset).
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    Ok(Network {
        source: mapped([header[12], header[13], header[14], header[15]]),
        destination: mapped([header[16], header[17], header[18], header[19]]),
        protocol: header[9],
        fragment,
        payload,
        end,
    })
}

#[inline(always)]
fn ipv6<P: Packet>(packet: &P, at: u32, aggregate: bool) -> Result<Network, Reason> {
    let Some(fixed) = packet.read::<8>(at) else { return Err(Reason::TruncatedIp) };
    if fixed[0] >> 4 != 6 {
        return Err(Reason::BadIpVersion);
    }
    let Some(source) = packet.read::<16>(at.wrapping_add(8)) else { return Err(Reason::TruncatedIp) };
    let Some(destination) = packet.read::<16>(at.wrapping_add(24)) else { return Err(Reason::TruncatedIp) };
    let mut payload = at.wrapping_add(40);
    let end = if aggregate {
        packet.len()
    } else {
        payload.wrapping_add(u32::from(u16::from_be_bytes([fixed[4], fixed[5]])))
    };
    if end > packet.len() {
        return Err(Reason::TruncatedIp);
    }
    let mut protocol = fixed[6];
    let mut fragment = false;
    let mut count = 0;
    // Hop-by-hop 0, routing 43, fragment 44, destination options 60 (RFC 8200, 4.1).
    while matches!(protocol, 0 | 43 | 44 | 60) {
        if count == MAX_EXTENSION_HEADERS {
            return Err(Reason::TooManyExtensionHeaders);
        }
        let Some(extension) = packet.read::<4>(payload) else { return Err(Reason::TruncatedIp) };
        let length = if protocol == 44 {
            // Offset or more fragments; an "atomic" fragment (RFC 6946) has neither.
            fragment |= u16::from_be_bytes([extension[2], extension[3]]) & 0xfff9 != 0;
            8
        } else {
            8 + u32::from(extension[1]) * 8
        };
        protocol = extension[0];
        payload = payload.wrapping_add(length);
        if payload > end {
            return Err(Reason::TruncatedIp);
        }
        if fragment {
            break;
        }
        count += 1;
    }
    Ok(Network { source, destination, protocol, fragment, payload, end })
}
