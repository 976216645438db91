//! Layout of the flow cache: what OVS decided for a flow, and what is remembered while a packet is inside OVS.
//!
//! Two families of maps, one for each IP version: a key of 20 bytes is hashed and compared in about two thirds of the
//! time of one that holds 16-byte addresses, and most clusters have IPv4 inside.
//!
//! **Wire order.** Addresses, ports, MACs and OVN's option are numbers whose bytes in memory are those on the wire, so
//! that the programs copy them by words. `u32::to_ne_bytes` gives the bytes. Everything else is in the host's order.
//!
//! **Ticks.** Time is counted in the kernel's timer ticks (`jiffies`: 100 to 1,000 a second, as the kernel was built), as a
//! `u32` that wraps after 49 days or more. To read them is a load for a program, where a clock is a call. User space asks a
//! program. Differences are taken as signed numbers.

/// Bytes put in front of a packet: IPv4 20, UDP 8, Geneve 8, OVN's option 8, inner Ethernet 14.
pub const OVERHEAD: u32 = 58;

/// Bytes replaced at the front of a packet: the outer Ethernet header and [`OVERHEAD`].
pub const HEADER_LEN: u32 = 14 + OVERHEAD;

/// [`HEADER_LEN`] as the length of an array.
pub const HEADER: usize = HEADER_LEN as usize;

/// Words of [`HEADER`].
pub const HEADER_WORDS: usize = HEADER / 8;

/// Cached flows are forwarded. Without it every packet takes the slow path.
pub const GATE_FORWARD: u32 = 1 << 0;
/// New entries are learned.
pub const GATE_LEARN: u32 = 1 << 1;
/// TCP is forwarded and learned too.
pub const GATE_TCP: u32 = 1 << 2;
/// OVS is away: entries are not sent to it for refresh, until the tick [`crate::layout::maps::Config::hold_until`].
pub const GATE_HOLD: u32 = 1 << 3;

/// A flow as a packet shows it, IPv4.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple4 {
    /// Source address, wire order.
    pub source: u32,
    /// Destination address, wire order.
    pub destination: u32,
    /// TCP or UDP source port, wire order.
    pub source_port: u16,
    /// TCP or UDP destination port, wire order.
    pub destination_port: u16,
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// [`FROM_POD`] or [`FROM_TUNNEL`] in keys of `PENDING`, else 0.
    pub direction: u8,
    pub _pad: u16,
}
const _: () = assert!(size_of::<Tuple4>() == 16);

/// A flow as a packet shows it, IPv6.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple6 {
    /// Source address, wire order.
    pub source: [u32; 4],
    /// Destination address, wire order.
    pub destination: [u32; 4],
    /// TCP or UDP source port, wire order.
    pub source_port: u16,
    /// TCP or UDP destination port, wire order.
    pub destination_port: u16,
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// [`FROM_POD`] or [`FROM_TUNNEL`] in keys of `PENDING`, else 0.
    pub direction: u8,
    pub _pad: u16,
}
const _: () = assert!(size_of::<Tuple6>() == 40);

/// The packet entered OVS from a pod.
pub const FROM_POD: u8 = 0;
/// The packet entered OVS from the uplink, in a tunnel.
pub const FROM_TUNNEL: u8 = 1;

/// Key of `FLOW_EGRESS*` and `CONNS*`: a pod's port and the flow as the pod sees it leave.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EgressKey<T> {
    /// Index of the pod's host veth.
    pub ifindex: u32,
    /// The flow.
    pub tuple: T,
}
const _: () = assert!(size_of::<EgressKey<Tuple4>>() == 20 && size_of::<EgressKey<Tuple6>>() == 44);

/// Key of `FLOW_INGRESS*`: where a tunnelled packet comes from, and the flow in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IngressKey<T> {
    /// Virtual network identifier, 24 bits, as the number it is.
    pub vni: u32,
    /// Data of OVN's option (ingress and egress port keys).
    pub option: u32,
    /// Outer source address.
    pub remote: u32,
    /// The flow inside.
    pub tuple: T,
}
const _: () = assert!(size_of::<IngressKey<Tuple4>>() == 28 && size_of::<IngressKey<Tuple6>>() == 52);

/// [`EgressFlow::kind`]: through the tunnel to another node.
pub const KIND_TUNNEL: u8 = 1;
/// [`EgressFlow::kind`]: to a pod of this node.
pub const KIND_LOCAL: u8 = 2;

/// Value of `FLOW_EGRESS*`: what OVS did with packets of this flow from this pod.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressFlow {
    /// The epoch in which the packet that taught the entry entered OVS.
    pub epoch: u32,
    /// Tick from which on a packet is sent through OVS again; while one is, the tick at which the entry dies.
    pub deadline: u32,
    /// `KIND_*`.
    pub kind: u8,
    /// Not 0: a refresh packet is inside OVS.
    pub probing: u8,
    /// Not 0: packets may use the entry: both directions were seen (TCP), or one (UDP).
    pub active: u8,
    /// How much OVS lowered the TTL or hop limit.
    pub ttl_step: u8,
    /// Where to redirect: the uplink, or the other pod's host veth.
    pub target: u32,
    /// Source and destination MAC as the pod wrote them, in the order of the packet: destination first.
    pub macs: [u32; 3],
    /// One's complement sum of the outer IPv4 header in [`Self::header`], whose length, ECN bits and checksum are 0.
    pub checksum: u32,
    /// Slot in `TUNNEL_STATS` (tunnel) or in `ENDPOINT_STATS`, the receiver's (local).
    pub slot: u16,
    /// DSCP of the packets that the entry is for, in the upper six bits, as in the packet.
    pub dscp: u8,
    pub _pad: u8,
    /// Tick at which the entry was made.
    pub learned: u32,
    /// Packets that used the entry. Approximate while several CPUs carry one flow.
    pub packets: u64,
    /// What OVS put at the front of the packet. Local: the first 12 bytes are the MACs as delivered.
    pub header: [u64; HEADER_WORDS],
}
const _: () = assert!(size_of::<EgressFlow>() == 120 && align_of::<EgressFlow>() == 8);
const _: () =
    assert!(crate::layout::maps::TUNNEL_SLOTS <= 1 << 16 && crate::layout::maps::PORT_SLOTS <= 1 << 16);

/// Value of `FLOW_INGRESS*`: what OVS did with packets of this flow from the tunnel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressFlow {
    /// The epoch in which the packet that taught the entry entered OVS.
    pub epoch: u32,
    /// Tick from which on a packet is sent through OVS again; while one is, the tick at which the entry dies.
    pub deadline: u32,
    /// Not 0: a refresh packet is inside OVS.
    pub probing: u8,
    /// Not 0: packets may use the entry: both directions were seen (TCP), or one (UDP).
    pub active: u8,
    /// How much OVS lowered the TTL or hop limit.
    pub ttl_step: u8,
    /// DSCP of the packets that the entry is for, in the upper six bits, as in the packet.
    pub dscp: u8,
    /// Host veth of the pod that gets the packet.
    pub target: u32,
    /// Destination and source MAC as OVS delivered them.
    pub macs: [u32; 3],
    /// Slot in `TUNNEL_STATS`.
    pub slot: u32,
    /// Tick at which the entry was made.
    pub learned: u32,
    /// Destination and source MAC of the inner frame as it came from the tunnel. OVS may deliver it with others.
    pub arrived: [u32; 3],
    /// Packets that used the entry. Approximate while several CPUs carry one flow.
    pub packets: u64,
}
const _: () = assert!(size_of::<IngressFlow>() == 56 && align_of::<IngressFlow>() == 8);

/// Value of `CONNS*`: a TCP connection of a pod.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conn {
    /// Epoch in which a packet out of the pod came out of OVS.
    pub epoch_out: u32,
    /// Epoch in which a packet to the pod came out of OVS.
    pub epoch_in: u32,
    /// VNI in the other direction's [`IngressKey`], if the peer is behind the tunnel.
    pub vni: u32,
    /// OVN's option in the other direction's [`IngressKey`], if the peer is behind the tunnel.
    pub option: u32,
    /// Outer source in the other direction's [`IngressKey`], if the peer is behind the tunnel.
    pub remote: u32,
    /// The other pod's host veth, if the peer is a pod of this node, else 0.
    pub peer: u32,
    /// Not 0: FIN or RST was seen, and nothing is learned before the next SYN.
    pub closing: u32,
}
const _: () = assert!(size_of::<Conn>() == 28);

/// [`Note::live`]: used already, or void. Array slots that never held a note have it.
pub const NOTE_VOID: u8 = 0;
/// [`Note::live`]: not yet used.
pub const NOTE_LIVE: u8 = 1;
/// [`Note::live`]: teaches nothing, and only tells that packets that are not for the cache came by this way.
pub const NOTE_MARK: u8 = 2;
/// [`Note::live`]: a packet came by this way while nothing was learned. It teaches nothing, and gives way in any epoch.
pub const NOTE_UNLEARNED: u8 = 3;

/// What is remembered of a packet that entered OVS: value of `PENDING*`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Epoch at entry.
    pub epoch: u32,
    /// Tick at entry.
    pub when: u32,
    /// Tick at which the last packet entered that left no note because of this one.
    pub last: u32,
    /// Host veth of the pod it came from; 0 = from the tunnel.
    pub ifindex: u32,
    /// Destination and source MAC at entry; from the tunnel those of the inner frame.
    pub macs: [u32; 3],
    /// From the tunnel: VNI, OVN's option, outer source address. From a pod: 0.
    pub way: [u32; 3],
    /// TTL or hop limit at entry.
    pub ttl: u8,
    /// Type of service or traffic class at entry.
    pub tos: u8,
    /// `NOTE_*`.
    pub live: u8,
    /// Not 0: more packets than the one that left it may be inside OVS, and would be credited to it.
    pub more: u8,
}
const _: () = assert!(size_of::<Note>() == 44);

/// A note with its flow: value of `NOTES*`, whose slots have numbers that packets carry as a tag ([`crate::decide::tag`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot<T> {
    /// The note.
    pub note: Note,
    /// The flow of the packet that left it.
    pub tuple: T,
}
const _: () = assert!(size_of::<Slot<Tuple4>>() == 60 && size_of::<Slot<Tuple6>>() == 84);

/// [`Divergence::what`]: an egress entry.
pub const DIVERGED_EGRESS: u32 = 1;
/// [`Divergence::what`]: an ingress entry.
pub const DIVERGED_INGRESS: u32 = 2;

/// Record in the ring buffer `EVENTS`: OVS answered otherwise than the entry says, in the same epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divergence {
    /// `DIVERGED_*`.
    pub what: u32,
    /// Host veth of the endpoint that is taken off the fast path.
    pub ifindex: u32,
    /// The epoch in which both answers were given.
    pub epoch: u32,
    /// IP version, 4 or 6.
    pub family: u32,
    /// The flow; IPv4 in mapped form.
    pub tuple: Tuple6,
    /// The answer that the entry had.
    pub remembered: Answer,
    /// The answer that OVS gave now.
    pub ovs: Answer,
}
const _: () = assert!(size_of::<Divergence>() == 216);

/// One answer in a [`Divergence`]. An ingress entry has only target, TTL step and, in the first 12 bytes of the header, the MACs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Interface that the packet goes to.
    pub target: u32,
    /// `KIND_*`.
    pub kind: u8,
    /// How much the TTL or hop limit is lowered.
    pub ttl_step: u8,
    pub _pad: [u8; 2],
    /// The front of the packet, as [`EgressFlow::header`].
    pub header: [u64; HEADER_WORDS],
}
const _: () = assert!(size_of::<Answer>() == 80);

impl Divergence {
    /// A record from the ring buffer's bytes; `None` if they are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; size_of::<Self>()] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let address = |at: usize| [word(at), word(at + 4), word(at + 8), word(at + 12)];
        let answer = |at: usize| {
            let mut header = [0; HEADER_WORDS];
            for (number, value) in header.iter_mut().enumerate() {
                let at = at + 8 + number * 8;
                *value = u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            }
            Answer { target: word(at), kind: bytes[at + 4], ttl_step: bytes[at + 5], _pad: [0; 2], header }
        };
        Some(Self {
            what: word(0),
            ifindex: word(4),
            epoch: word(8),
            family: word(12),
            tuple: Tuple6 {
                source: address(16),
                destination: address(32),
                source_port: half(48),
                destination_port: half(50),
                protocol: bytes[52],
                direction: bytes[53],
                _pad: 0,
            },
            remembered: answer(56),
            ovs: answer(136),
        })
    }
}
