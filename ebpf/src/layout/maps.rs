//! The configuration, ports and counters: what the agent writes for the programs, and what they count for it. Also how large each map
//! is.
//!
//! Every type here is `repr(C)`, has no hidden padding and a size assertion, because user space and kernel read the
//! same bytes, and a pinned map outlives the agent that made it. A change of size, order or meaning needs a new
//! [`LAYOUT`].

/// Version of everything in [`crate::layout`]. It is part of the pin path (`…/v10/`): an agent with another layout never
/// touches these maps, it fills its own and moves the links over.
pub const LAYOUT: u32 = 10;

/// UDP destination port of Geneve (RFC 8926, 3.3).
pub const GENEVE_PORT: u16 = 6081;

/// Interfaces with an index below this are found in the array `ENDPOINTS`, others in the hash `ENDPOINTS_HIGH`.
pub const PORT_ARRAY_SIZE: u32 = 16_384;

/// Capacity of `ENDPOINTS_HIGH`.
pub const PORT_HASH_SIZE: u32 = 16_384;

/// Number of counter slots for ports, slot [`SLOT_UPLINK`] included.
pub const PORT_SLOTS: u32 = 4_096;

/// Tunnels that can be counted: capacity of `TUNNELS` and, with slot [`TUNNEL_OTHER`], of `TUNNEL_STATS`. A cluster of
/// 1,000 nodes has 2 entries a peer: one VNI in, one out.
pub const TUNNEL_SLOTS: u32 = 8_192;

/// Slot in `TUNNEL_STATS` of all tunnels that found no room.
pub const TUNNEL_OTHER: u32 = 0;

/// Capacity of `REMOTES`: nodes that OVS takes tunnelled packets from. As many as [`TUNNEL_SLOTS`] has room for.
pub const REMOTES: u32 = 4_096;
const _: () = assert!(REMOTES * 2 == TUNNEL_SLOTS);

/// Slots of `PEERS`, a power of two, on each CPU.
pub const PEERS: u32 = 2_048;
const _: () = assert!(PEERS.is_power_of_two());

/// Default capacity of `FLOWS`; a flag of the agent changes it. A connection has an entry for each direction.
pub const FLOWS: u32 = 524_288;

/// `FLOWS6` has this part of it.
pub const FLOWS6_PART: u32 = 4;

/// Slots of `NOTES*` for packets that are no aggregates.
pub const SINGLE_NOTES: u32 = 1 << 15;

/// Slots of `NOTES` for aggregates, in blocks: the kernel cuts an aggregate on its way to OVS's userspace datapath and counts the
/// identification on.
pub const BLOCKS: u32 = 512;

/// Slots of one block: the most segments of an aggregate that is noted.
pub const BLOCK: u32 = 64;

/// Capacity of `NOTES`: the number of a slot is an IPv4 identification.
pub const NOTES: u32 = SINGLE_NOTES + BLOCKS * BLOCK;
const _: () = assert!(NOTES == 1 << 16);

/// Capacity of `NOTES6`. All segments of an aggregate have one flow label.
pub const NOTES6: u32 = 1 << 14;

/// Slots of `SEEN`, a power of two.
pub const SEEN: u32 = 1 << 13;
const _: () = assert!(SEEN.is_power_of_two());

/// Bytes of `EVENTS`: some 200 divergences.
pub const EVENTS_BYTES: u32 = 1 << 16;

/// Counter slot of the uplink; pods have slots from 1.
pub const SLOT_UPLINK: u32 = 0;
/// Counter slot of the gateway bridge's own port, by which the node reaches the outside.
pub const SLOT_BRIDGE: u32 = PORT_SLOTS - 1;
/// Counter slot of the management port, by which the node reaches pods.
pub const SLOT_MANAGEMENT: u32 = PORT_SLOTS - 2;
/// Slot in `NOTE_BUDGET` of packets that come by the uplink without a tunnel. Nothing else is counted in it.
pub const SLOT_OUTSIDE: u32 = PORT_SLOTS - 3;
/// The last counter slot of a pod.
pub const LAST_POD_SLOT: u32 = PORT_SLOTS - 4;

/// Contents of `CONFIG`, an array of one: all that steers the programs. Times are in ticks, see [`crate::layout::flow`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The node's epoch. Never 0 once the agent has been there.
    pub epoch: u32,
    /// Number of the last change of a part of OVS's tables, see [`crate::layout::scope`]. Its lowest bit: in some scope nothing is learned.
    pub change: u32,
    /// `GATE_*` bits.
    pub gate: u32,
    /// Tick at which the agent was last alive.
    pub heartbeat: u32,
    /// [`LAYOUT`] of the agent that wrote it; 0 = not written yet.
    pub layout: u32,
    /// UDP port of Geneve, host byte order; 0 = count nothing as Geneve.
    pub geneve_port: u16,
    /// MTU of the uplink in bytes, for packets without a tunnel; 0 = none leaves by it on the fast path.
    pub uplink_mtu: u16,
    /// Index of the uplink; 0 = none.
    pub uplink: u32,
    /// MTU of the pods' interfaces in bytes, as OVN's routers know it. A pod may think otherwise.
    pub pod_mtu: u32,
    /// The longest packet of a pod that the tunnel takes, in bytes: [`Self::pod_mtu`], or less where the uplink's MTU leaves
    /// less room for it and [`crate::layout::flow::OVERHEAD`].
    pub tunnel_mtu: u32,
    /// Address of the tunnel endpoint, network byte order; 0 = nothing crosses the tunnel on the fast path.
    pub local: [u8; 4],
    /// MAC of the node on the uplink: the words that it is at the front of a packet, the second one's last half 0.
    pub mac: [u32; 2],
    /// An entry is sent through OVS again after this time; 0 = every packet is.
    pub refresh: u32,
    /// Each deadline is earlier by a random time below this, a power of two, so that entries made together part.
    pub jitter: u32,
    /// How long a refresh that is due waits for a packet that is cheap to delay.
    pub slack: u32,
    /// How long OVS may take for the refresh packet.
    pub grace: u32,
    /// An entry that nobody used for this long after its deadline is not trusted: OVS may have forgotten the
    /// connection.
    pub overdue: u32,
    /// A note older than this teaches nothing.
    pub note_age: u32,
    /// A slot whose note is younger than this is not used again.
    pub note_reuse: u32,
    /// Nothing is learned after so many ticks without a heartbeat of the agent.
    pub heartbeat_limit: u32,
    /// New entries per CPU in one window of this budget …
    pub budget: u32,
    /// … whose length in ticks is 2 to this power.
    pub budget_shift: u32,
    /// Tick at which a hold ends, whoever lives then: see [`crate::decide::age::holds`]. Written once, when the hold begins.
    pub hold_until: u32,
    /// CPUs of this machine, rounded up to a power of two, as a power of two: how the slots of `NOTES*` are shared out.
    pub cpu_shift: u32,
    /// Notes that packets of one port may take on one CPU in one window of [`Self::budget_shift`], those of the uplink
    /// [`UPLINK_NOTES`] times as many. Refreshes do not count.
    pub note_budget: u32,
    /// A UDP packet without an entry is noted if there was another one of its flow within this time; 0 = always.
    pub again: u32,
}
const _: () = assert!(size_of::<Config>() == 104);

/// How many times as many notes the uplink may take as a pod's port: all other nodes are behind it.
pub const UPLINK_NOTES: u32 = 4;

/// Part of a CPU's new entries that flows from the outside may take: whoever can reach the node can make them up.
pub const OUTSIDE_PART: u32 = 4;

/// Value of `BUDGET`, two per CPU, the second one for flows from the outside, and of `NOTE_BUDGET`, one per CPU and port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Number of the window.
    pub window: u32,
    /// Entries made in it, or notes.
    pub used: u32,
}
const _: () = assert!(size_of::<Budget>() == 8);

/// Value of `NOTE_CURSOR`, one per CPU: how far the slots are used, those for packets that may make an entry and those for packets by which one
/// is refreshed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursors {
    /// Slots for single IPv4 packets.
    pub single: [Cursor; 2],
    /// Blocks of slots for IPv4 aggregates.
    pub block: [Cursor; 2],
    /// Slots for IPv6 packets.
    pub six: [Cursor; 2],
}
const _: () = assert!(size_of::<Cursors>() == 48);

/// How far a share of slots is used. Slots are taken group by group, and within a group in an order that nobody can know.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Slots of the share that were taken in this round.
    pub at: u32,
    /// Random number of this group: a slot's place in the group is its turn, XOR this.
    pub key: u32,
}

/// The entry is in use. Array slots of interfaces that are not ours are all zero.
pub const PORT_PRESENT: u32 = 1 << 0;
/// Interposed: redirect to [`Port::redirect`]. Otherwise direct: pass on.
pub const PORT_INTERPOSED: u32 = 1 << 1;
/// The uplink or the agent's end of its shim.
pub const PORT_UPLINK: u32 = 1 << 2;
/// The flow cache is used for this port.
pub const PORT_FAST: u32 = 1 << 3;

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
    /// MAC bound to the port; of the uplink that of the node, or zero if only tunnels are on the fast path.
    pub mac: [u8; 6],
    /// Padding; always 0.
    pub _pad: [u8; 2],
    /// IPv4 address bound to the port, network byte order; zero = none.
    pub ipv4: [u8; 4],
    /// IPv6 address bound to the port; zero = none.
    pub ipv6: [u8; 16],
    /// Epoch in which OVS answered otherwise than an entry of this port said; 0 = never. The port is slow as long as
    /// the epoch is this one. Written by the programs, in the entry of the host veth.
    pub diverged: u32,
}
const _: () = assert!(size_of::<Port>() == 44 && align_of::<Port>() == 4);

/// Packets, and their bytes on the wire, see [`crate::packet::wire`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets on the wire: an aggregate counts as the segments that it stands for.
    pub packets: u64,
    /// Ethernet bytes on the wire, without FCS.
    pub bytes: u64,
}

/// What went through one port: value of `ENDPOINT_STATS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// From the port, to OVS: sent by the pod or the node, or received on the uplink.
    pub slow_from: Count,
    /// To the port, from OVS: received by the pod or the node, or sent on the uplink.
    pub slow_to: Count,
    /// From the port on the fast path. Of the uplink what is in no tunnel.
    pub fast_from: Count,
    /// To the port on the fast path. Of the uplink what is in no tunnel.
    pub fast_to: Count,
}
const _: () = assert!(size_of::<PortCounters>() == 64);

/// Key of `TUNNELS`, whose value is the slot in `TUNNEL_STATS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelKey {
    /// The peer's underlay address; IPv4 as `::ffff:a.b.c.d`.
    pub remote: [u8; 16],
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
}
const _: () = assert!(size_of::<TunnelKey>() == 20);

/// Value of `PEERS`: what was found of a node and a VNI on this CPU, see [`crate::decide::peer`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The node's epoch before it was looked for; 0 = nothing was found yet.
    pub epoch: u32,
    /// The node's underlay address, wire order.
    pub address: u32,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Slot in `TUNNEL_STATS`.
    pub slot: u32,
}
const _: () = assert!(size_of::<Peer>() == 16);

/// Geneve packets and bytes exchanged with one peer under one VNI. Bytes count the outer headers too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounters {
    /// Received from the peer, to OVS.
    pub slow_rx: Count,
    /// Sent to the peer, from OVS.
    pub slow_tx: Count,
    /// Received from the peer on the fast path.
    pub fast_rx: Count,
    /// Sent to the peer on the fast path.
    pub fast_tx: Count,
}
const _: () = assert!(size_of::<TunnelCounters>() == 64);

/// IPv4 address in the 16-byte form that all maps use (`::ffff:a.b.c.d`).
#[inline(always)]
pub const fn mapped(v4: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3]]
}

/// The IPv4 address of that form, as it is in a packet.
#[inline(always)]
pub fn unmapped(address: &[u8; 16]) -> Option<[u8; 4]> {
    let (prefix, v4) = address.split_first_chunk::<12>()?;
    (*prefix == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]).then(|| v4.try_into().ok()).flatten()
}

impl Count {
    /// Sum of two.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }
}

impl PortCounters {
    /// Sum of two counters (over CPUs).
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            slow_from: self.slow_from.plus(other.slow_from),
            slow_to: self.slow_to.plus(other.slow_to),
            fast_from: self.fast_from.plus(other.fast_from),
            fast_to: self.fast_to.plus(other.fast_to),
        }
    }

    /// From the port, on both paths.
    pub const fn from(self) -> Count {
        self.slow_from.plus(self.fast_from)
    }

    /// To the port, on both paths.
    pub const fn to(self) -> Count {
        self.slow_to.plus(self.fast_to)
    }
}

impl TunnelCounters {
    /// Sum of two counters (over CPUs).
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            slow_rx: self.slow_rx.plus(other.slow_rx),
            slow_tx: self.slow_tx.plus(other.slow_tx),
            fast_rx: self.fast_rx.plus(other.fast_rx),
            fast_tx: self.fast_tx.plus(other.fast_tx),
        }
    }

    /// Received, on both paths.
    pub const fn rx(self) -> Count {
        self.slow_rx.plus(self.fast_rx)
    }

    /// Sent, on both paths.
    pub const fn tx(self) -> Count {
        self.slow_tx.plus(self.fast_tx)
    }
}
