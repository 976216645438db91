//! What is decided before an entry is looked for: by the gate, the endpoint, and what the packet says of itself.

use crate::layout::{
    flow::{GATE_FORWARD, GATE_TCP},
    maps::{Config, PORT_FAST, Port},
    reason::Reason,
};

/// Whether packets of this pod's port may use the flow cache at all. Asked before a packet is read.
///
/// # Errors
/// Why they may not.
#[inline(always)]
pub fn endpoint(gate: u32, port: &Port, epoch: u32) -> Result<(), Reason> {
    if gate & GATE_FORWARD == 0 {
        return Err(Reason::GateClosed);
    }
    takes_part(port, epoch)
}

/// The counter slot of the port that gets a packet, if it takes part in the flow cache.
///
/// # Errors
/// Why it does not; `None` is a port that is gone.
#[inline(always)]
pub fn receiver(port: Option<&Port>, epoch: u32) -> Result<u32, Reason> {
    let Some(port) = port else { return Err(Reason::EndpointSlow) };
    takes_part(port, epoch).map(|()| port.slot)
}

#[inline(always)]
fn takes_part(port: &Port, epoch: u32) -> Result<(), Reason> {
    if port.flags & PORT_FAST == 0 {
        return Err(Reason::EndpointSlow);
    }
    if port.diverged == epoch {
        return Err(Reason::EndpointDiverged);
    }
    Ok(())
}

/// What is seen of the outer headers of a packet from the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// A VLAN tag is held beside the packet.
    pub vlan: bool,
    /// The packet is for this node's tunnel endpoint, see [`is_for_node`].
    pub ours: bool,
    /// The outer UDP checksum is 0.
    pub plain: bool,
    /// The checksum of the outer IPv4 header is right.
    pub sum_is_right: bool,
}

/// Whether a packet from the tunnel may use the flow cache, by its outer headers.
///
/// # Errors
/// Why it may not.
#[inline(always)]
pub fn tunnel(gate: u32, outside: Outside) -> Result<(), Reason> {
    if gate & GATE_FORWARD == 0 {
        Err(Reason::GateClosed)
    } else if outside.vlan {
        Err(Reason::Vlan)
    } else if !outside.ours {
        Err(Reason::OtherDestination)
    } else if !outside.plain {
        Err(Reason::OuterChecksum)
    } else if !outside.sum_is_right {
        Err(Reason::OuterHeader)
    } else {
        Ok(())
    }
}

/// Whether a packet is for this node's tunnel endpoint. `mac`: its first six bytes as [`Config::mac`] has them; `destination`: its
/// outer address in wire order.
#[inline(always)]
pub fn is_for_node(mac: [u32; 2], destination: u32, config: &Config) -> bool {
    let local = u32::from_ne_bytes(config.local);
    let other = (destination ^ local) | (mac[0] ^ config.mac[0]) | (mac[1] ^ config.mac[1]);
    other == 0 && local != 0
}

/// What comes next for a packet whose headers were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The packet's entry is looked for.
    Lookup,
    /// The packet goes to OVS, and its connection begins or ends with it, see [`super::connection`].
    Change,
    /// The packet goes to OVS for this reason.
    Slow(Reason),
}

/// What comes next for a pod's packet. `bound`: the source address is the port's; `tcp`, `changes`: it is TCP, and has SYN, FIN or RST.
#[inline(always)]
pub const fn pod_packet(gate: u32, bound: bool, tcp: bool, changes: bool) -> Next {
    if !bound {
        Next::Slow(Reason::SourceMismatch)
    } else if changes {
        Next::Change
    } else if tcp && gate & GATE_TCP == 0 {
        Next::Slow(Reason::TcpGateClosed)
    } else {
        Next::Lookup
    }
}

/// What comes next for a packet of the node, or one that comes by the uplink without a tunnel. `geneve`: it is UDP to Geneve's port, and
/// so a tunnel's. `tcp`, `changes`: as for [`pod_packet`].
#[inline(always)]
pub const fn plain_packet(gate: u32, geneve: bool, tcp: bool, changes: bool) -> Next {
    if geneve {
        Next::Slow(Reason::TunnelPacket)
    } else if changes {
        Next::Change
    } else if tcp && gate & GATE_TCP == 0 {
        Next::Slow(Reason::TcpGateClosed)
    } else {
        Next::Lookup
    }
}

/// What comes next for a packet from the tunnel. `same_ecn`: the outer ECN bits are those that OVS gives to the inner packet's; a mark
/// on the way has to get into the inner packet, which OVS does. `tcp`, `changes`: as for [`pod_packet`].
#[inline(always)]
pub const fn tunnel_packet(gate: u32, same_ecn: bool, tcp: bool, changes: bool) -> Next {
    if !same_ecn {
        Next::Slow(Reason::CongestionMark)
    } else if tcp && gate & GATE_TCP == 0 {
        Next::Slow(Reason::TcpGateClosed)
    } else if changes {
        Next::Change
    } else {
        Next::Lookup
    }
}

/// Whether an entry may be made for a pod's packets with these MACs (12 bytes of the packet): the source is the port's own, the
/// destination one station.
///
/// # Errors
/// Why not.
#[inline(always)]
pub fn addressed(macs: &[u32; 3], own: &[u8; 6]) -> Result<(), Reason> {
    let [a, b, c, d, e, f] = *own;
    // Bytes 6 to 11 of the header.
    if macs[1] >> 16 != u32::from(u16::from_ne_bytes([a, b])) || macs[2] != u32::from_ne_bytes([c, d, e, f]) {
        return Err(Reason::SourceMismatch);
    }
    one_station(macs)
}

/// Whether the destination MAC is that of one station.
///
/// # Errors
/// [`Reason::Multicast`].
#[inline(always)]
pub const fn one_station(macs: &[u32; 3]) -> Result<(), Reason> {
    // The group bit of the first byte (IEEE 802, 8.2).
    if macs[0].to_ne_bytes()[0] & 1 != 0 { Err(Reason::Multicast) } else { Ok(()) }
}

/// Whether a packet on the uplink is for this node. `macs`: as for [`addressed`]; `own`: of the node, as [`Port::mac`] of the uplink.
///
/// # Errors
/// [`Reason::OtherDestination`].
#[inline(always)]
pub fn for_node(macs: &[u32; 3], own: &[u8; 6]) -> Result<(), Reason> {
    let [a, b, c, d, e, f] = *own;
    let other = (macs[0] ^ u32::from_ne_bytes([a, b, c, d]))
        | ((macs[1] & LOW_HALF) ^ u32::from(u16::from_ne_bytes([e, f])));
    if other == 0 { Ok(()) } else { Err(Reason::OtherDestination) }
}

/// The first two of four bytes, on the little-endian machines that the programs run on.
const LOW_HALF: u32 = 0xffff;
