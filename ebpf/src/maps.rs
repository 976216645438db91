//! Layout of the maps: the contract between the programs, which read and count, and the agent, which writes ports
//! and reads counters.
//!
//! Every type here is `repr(C)`, has no hidden padding and a size assertion, because user space and kernel read the
//! same bytes, and a pinned map outlives the agent that made it. A change of size, order or meaning needs a new
//! [`LAYOUT`].

/// Version of everything in this module. It is part of the pin path (`…/v1/`): an agent with another layout never
/// touches these maps, it fills its own and moves the links over.
pub const LAYOUT: u32 = 1;

/// UDP destination port of Geneve (RFC 8926, 3.3).
pub const GENEVE_PORT: u16 = 6081;

/// Interfaces with an index below this are found in the array `ENDPOINTS`, others in the hash `ENDPOINTS_HIGH`.
pub const PORT_ARRAY_SIZE: u32 = 16_384;

/// Capacity of `ENDPOINTS_HIGH`.
pub const PORT_HASH_SIZE: u32 = 16_384;

/// Number of counter slots for ports, slot [`SLOT_UPLINK`] included.
pub const PORT_SLOTS: u32 = 4_096;

/// Capacity of `TUNNEL_STATS`. A cluster of 1,000 nodes has 2 entries a peer: one VNI in, one out.
pub const TUNNEL_SLOTS: u32 = 8_192;

/// Counter slot of the uplink; pods have slots from 1.
pub const SLOT_UPLINK: u32 = 0;

/// Contents of `CONFIG`, an array of one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// [`LAYOUT`] of the agent that wrote it; 0 = not written yet.
    pub layout: u32,
    /// UDP port of Geneve, host byte order; 0 = count nothing as Geneve.
    pub geneve_port: u16,
    pub _pad: u16,
}
const _: () = assert!(size_of::<Config>() == 8);

/// The entry is in use. Array slots of interfaces that are not ours are all zero.
pub const PORT_PRESENT: u32 = 1 << 0;
/// Interposed: redirect to [`Port::redirect`]. Otherwise direct: pass on.
pub const PORT_INTERPOSED: u32 = 1 << 1;
/// The uplink or the agent's end of its shim.
pub const PORT_UPLINK: u32 = 1 << 2;

/// One interface that a program is attached to, by its index. In interposed mode the host veth and the agent's end
/// of the shim have an entry each, with the same counter slot, that point at one another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// `PORT_*` bits.
    pub flags: u32,
    /// Interface to redirect to, by its egress; 0 in direct mode.
    pub redirect: u32,
    /// Index into `ENDPOINT_STATS`.
    pub slot: u32,
    /// MAC bound to the port; zero for the uplink.
    pub mac: [u8; 6],
    pub _pad: [u8; 2],
    /// IPv4 address bound to the port, network byte order; zero = none.
    pub ipv4: [u8; 4],
    /// IPv6 address bound to the port; zero = none.
    pub ipv6: [u8; 16],
}
const _: () = assert!(size_of::<Port>() == 40 && align_of::<Port>() == 4);

/// Packets and bytes of one port. Bytes are bytes on the wire, see [`crate::wire`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// From the port: sent by the pod, or received on the uplink.
    pub from_packets: u64,
    pub from_bytes: u64,
    /// To the port: received by the pod, or sent on the uplink.
    pub to_packets: u64,
    pub to_bytes: u64,
}
const _: () = assert!(size_of::<PortCounters>() == 32);

/// Key of `TUNNEL_STATS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelKey {
    /// The peer's underlay address; IPv4 as `::ffff:a.b.c.d`.
    pub remote: [u8; 16],
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
}
const _: () = assert!(size_of::<TunnelKey>() == 20);

/// Geneve packets and bytes exchanged with one peer under one VNI. Bytes count the outer headers too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}
const _: () = assert!(size_of::<TunnelCounters>() == 32);

/// IPv4 address in the 16-byte form that all maps use (`::ffff:a.b.c.d`).
#[inline(always)]
pub const fn mapped(v4: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3]]
}

impl PortCounters {
    /// Sum of two counters (over CPUs).
    pub const fn plus(self, other: Self) -> Self {
        Self {
            from_packets: self.from_packets.wrapping_add(other.from_packets),
            from_bytes: self.from_bytes.wrapping_add(other.from_bytes),
            to_packets: self.to_packets.wrapping_add(other.to_packets),
            to_bytes: self.to_bytes.wrapping_add(other.to_bytes),
        }
    }
}

impl TunnelCounters {
    /// Sum of two counters (over CPUs).
    pub const fn plus(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets.wrapping_add(other.rx_packets),
            rx_bytes: self.rx_bytes.wrapping_add(other.rx_bytes),
            tx_packets: self.tx_packets.wrapping_add(other.tx_packets),
            tx_bytes: self.tx_bytes.wrapping_add(other.tx_bytes),
        }
    }
}
