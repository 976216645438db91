//! Geneve on the uplink (RFC 8926), as OVS takes it.

use super::{Packet, UDP, network};
use crate::layout::reason::Reason;

/// EtherType of a tunnelled Ethernet frame ("transparent Ethernet bridging").
const TRANSPARENT_ETHERNET: u16 = 0x6558;

/// The option length field has 6 bits of 4-byte words, an option takes at least one.
const MAX_OPTIONS: u32 = 63;

/// A well-formed Geneve packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer source address, IPv4 in mapped form.
    pub source: [u8; 16],
    /// Outer destination address, IPv4 in mapped form.
    pub destination: [u8; 16],
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Offset of the inner Ethernet header.
    pub inner: u32,
}

/// Looks at a packet on the uplink. `port`: UDP destination port of Geneve. True if it is Geneve; then `tunnel` tells of it.
/// Anything else is the node's own traffic, NodePort traffic, ARP, …
///
/// Not by return value: on the ways that have no tunnel it would be undefined, and the verifier refuses to have that copied.
///
/// # Errors
/// The first thing that is wrong with the packet, or [`Reason::Fragment`] for a UDP fragment.
#[inline(always)]
pub fn uplink<P: Packet>(
    packet: &P,
    port: u16,
    aggregate: bool,
    tunnel: &mut Tunnel,
) -> Result<bool, Reason> {
    let network = match network(packet, 0, aggregate) {
        Ok(Some(network)) => network,
        Ok(None) => return Ok(false),
        Err(reason) => return Err(reason),
    };
    tunnel.source = network.source;
    tunnel.destination = network.destination;
    if network.protocol != UDP {
        return Ok(false);
    }
    if network.fragment {
        return Err(Reason::Fragment);
    }
    let room = network.end.wrapping_sub(network.payload);
    if room < 8 {
        return Err(Reason::TruncatedUdp);
    }
    let Some(udp) = packet.read::<8>(network.payload) else { return Err(Reason::TruncatedUdp) };
    if port == 0 || u16::from_be_bytes([udp[2], udp[3]]) != port {
        return Ok(false);
    }
    let declared = u32::from(u16::from_be_bytes([udp[4], udp[5]]));
    let length = if aggregate { room } else { declared };
    if length < 8 || length > room {
        return Err(Reason::BadUdpLength);
    }
    if length < 16 {
        return Err(Reason::TruncatedGeneve);
    }
    let base = network.payload.wrapping_add(8);
    let Some(header) = packet.read::<8>(base) else { return Err(Reason::TruncatedGeneve) };
    if header[0] >> 6 != 0 {
        return Err(Reason::BadGeneveVersion);
    }
    let options = u32::from(header[0] & 0x3f) * 4;
    if 16 + options > length {
        return Err(Reason::OptionsBeyondPacket);
    }
    if u16::from_be_bytes([header[2], header[3]]) != TRANSPARENT_ETHERNET {
        return Err(Reason::BadProtocolType);
    }
    tunnel.vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
    tunnel.inner = base.wrapping_add(8).wrapping_add(options);
    if !options_fit(packet, base.wrapping_add(8), options) {
        return Err(Reason::OptionOverrun);
    }
    if 16 + options + 14 > length {
        return Err(Reason::TruncatedInner);
    }
    Ok(true)
}

/// Whether the options fill their space exactly. `space` is a multiple of 4.
#[inline(always)]
fn options_fit<P: Packet>(packet: &P, start: u32, space: u32) -> bool {
    let mut at = 0;
    let mut count = 0;
    while count < MAX_OPTIONS {
        if at >= space {
            break;
        }
        // Class (2 bytes), type, 3 reserved bits and 5 bits of length in words.
        let Some([length]) = packet.read::<1>(start.wrapping_add(at).wrapping_add(3)) else { return false };
        at += 4 + u32::from(length & 0x1f) * 4;
        count += 1;
    }
    at == space
}
