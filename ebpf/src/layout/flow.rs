//! Layout of the flow cache: what OVS decided for a flow, and what is remembered while a packet is inside OVS.
//!
//! One table of entries for each IP version: a key of 16 bytes is hashed and compared in less than half of the time of one that
//! holds 16-byte addresses, and most clusters have IPv4 inside. The key is the flow as it enters OVS and the side of the bridge on
//! which it does; the value says by which port or tunnel exactly, and what OVS did.
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
/// `SLOW_SERVICES` has an entry. Asked when something is learned, and only then.
pub const GATE_SERVICES: u32 = 1 << 4;
/// `REMOTES` has not every address that OVS has a tunnel to. Asked before a packet from another address is dropped, and only then.
pub const GATE_MORE_REMOTES: u32 = 1 << 5;

/// A side of the bridge: pods' ports.
pub const SIDE_POD: u8 = 0;
/// A side of the bridge: Geneve tunnels.
pub const SIDE_TUNNEL: u8 = 1;
/// A side of the bridge: the uplink, without a tunnel.
pub const SIDE_OUTSIDE: u8 = 2;
/// A side of the bridge: the node's own ports, of the gateway bridge and the management port.
pub const SIDE_NODE: u8 = 3;

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
    /// `SIDE_*`: where the packet enters OVS, or leaves it.
    pub side: u8,
    /// Padding; always 0.
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
    /// `SIDE_*`: where the packet enters OVS, or leaves it.
    pub side: u8,
    /// Padding; always 0.
    pub _pad: u16,
}
const _: () = assert!(size_of::<Tuple6>() == 40);

/// Where a packet enters OVS. From a port: its interface index, the VLAN tag by a physical network's port ([`vlan`]), and a zero. From a
/// tunnel: VNI, OVN's option and outer source address, the last two in wire order.
pub type Way = [u32; 3];

/// A VLAN tag (IEEE 802.1Q, TPID 0x8100) as a number that is never 0, which stands for none. `control`: its tag control information,
/// priority and VLAN.
#[inline(always)]
pub const fn vlan(control: u16) -> u32 {
    1 << 16 | control as u32
}

/// [`Entry::state`]: the other direction of the connection was not seen yet.
pub const STATE_WAITING: u8 = 0;
/// [`Entry::state`]: packets may use the entry.
pub const STATE_ACTIVE: u8 = 1;
/// [`Entry::state`]: FIN of this direction was seen, or RST. The entry carries nothing, and nothing is learned into it.
pub const STATE_CLOSING: u8 = 2;
/// [`Entry::state`]: of a service that is kept off the cache. The entry carries nothing, it says that its packets are for OVS, and
/// counts them.
pub const STATE_SLOW: u8 = 3;
/// [`Entry::state`], and all numbers above: OVS's answer is likely, not certain ([`crate::decide::learn::Tie`]). The entry carries nothing. Each
/// further packet that OVS answers the same makes the number greater by 1, the last one of [`AGREEING`] makes it [`STATE_ACTIVE`].
pub const STATE_LIKELY: u8 = 4;
/// How many further packets OVS must have answered the same before an answer that is likely counts as certain.
pub const AGREEING: u8 = 3;

/// [`Entry::probing`]: OVS is not being asked.
pub const PROBE_NONE: u8 = 0;
/// [`Entry::probing`]: a refresh packet is inside OVS.
pub const PROBE_SENT: u8 = 1;
/// [`Entry::probing`]: OVS is not being asked and has confirmed nothing yet, so that [`Entry::deadline`] is an early one.
pub const PROBE_FIRST: u8 = 2;

/// [`Entry::translated`]: addresses or ports are translated.
pub const TRANSLATED: u32 = 1 << 0;
/// [`Entry::translated`]: the entry was made in [`STATE_SLOW`]. It stays when the connection is closed.
pub const KEPT_OFF: u32 = 1 << 1;

/// [`Entry::translated`]: the entry is no longer valid after any change, as it cannot be told which ones concern it, see
/// [`crate::decide::scope`].
pub const SENSITIVE: u32 = 1 << 2;

/// Value of `FLOWS*`: what OVS did with packets of a flow. The key is the flow as it entered OVS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<T> {
    /// The epoch in which the packet that taught the entry entered OVS.
    pub epoch: u32,
    /// [`crate::layout::maps::Config::change`] when the entry was last found to be of no scope that has changed.
    pub checked: u32,
    /// Where the packets enter OVS.
    pub way: Way,
    /// Source and destination MAC of the packets that the entry is for, in the order of the packet: destination first. From a tunnel
    /// those of the inner frame.
    pub macs: [u32; 3],
    /// Tick from which on a packet is sent through OVS again; while one is, the tick at which the entry dies.
    pub deadline: u32,
    /// Where to redirect: a pod's host veth, the uplink, or an interface of the node.
    pub target: u32,
    /// `STATE_*`.
    pub state: u8,
    /// `PROBE_*`.
    pub probing: u8,
    /// How much OVS lowered the TTL or hop limit.
    pub ttl_step: u8,
    /// DSCP of the packets that the entry is for, in the upper six bits, as in the packet.
    pub dscp: u8,
    /// Slot in `TUNNEL_STATS` of the tunnel by which the packets come; 0 if by none.
    pub slot_in: u16,
    /// Slot of what the packets leave by: in `TUNNEL_STATS`, or in `ENDPOINT_STATS`, the receiver's.
    pub slot_out: u16,
    /// One's complement sum of the outer IPv4 header in [`Self::header`], whose length, ECN bits and checksum are 0.
    pub checksum: u32,
    /// The packet as OVS gave it out; its side says where to.
    pub after: T,
    /// One's complement sum of what changes in the addresses; 0 and an equal port word below: nothing is translated.
    pub address_difference: u32,
    /// One's complement sum of what changes in the ports.
    pub port_difference: u32,
    /// [`TRANSLATED`], [`KEPT_OFF`] and [`SENSITIVE`].
    pub translated: u32,
    /// [`crate::layout::maps::Config::change`] when the packet that taught the entry, or confirmed it last, entered OVS.
    pub entered: u32,
    /// Tick at which the flow was learned. An entry that replaces one with the same answer goes on with its time and counts.
    pub learned: u32,
    /// Packets that used the entry, or that it kept off the cache. Approximate while several CPUs carry one flow.
    pub packets: u64,
    /// Bytes on the wire, as the packets came, likewise.
    pub bytes: u64,
    /// What OVS put at the front of the packet. Without a tunnel the first 12 bytes are the MACs as delivered, and the next four the VLAN tag
    /// ([`vlan`]).
    pub header: [u64; HEADER_WORDS],
}
const _: () = assert!(size_of::<Entry<Tuple4>>() == 176 && align_of::<Entry<Tuple4>>() == 8);
const _: () = assert!(size_of::<Entry<Tuple6>>() == 200 && align_of::<Entry<Tuple6>>() == 8);
const _: () =
    assert!(crate::layout::maps::TUNNEL_SLOTS <= 1 << 16 && crate::layout::maps::PORT_SLOTS <= 1 << 16);

/// [`Note::state`]: no packet has it. Slots that never held a note are so.
pub const NOTE_VOID: u8 = 0;
/// [`Note::state`]: its packet is inside OVS, and may teach.
pub const NOTE_LIVE: u8 = 1;
/// [`Note::state`]: a packet came out with it, or it never was to teach: another is only put back as it was.
pub const NOTE_SPENT: u8 = 2;

/// What a translation leaves as it is, and what tells a packet from others of its flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Print {
    /// Bytes from the IP header to the end.
    pub length: u32,
    /// TCP: sequence number, as a number. UDP: the first four bytes of the payload.
    pub first: u32,
    /// TCP: acknowledgement number in wire order. UDP: the second four bytes of the payload.
    pub second: u32,
}

/// What is remembered of a packet that entered OVS: value of `NOTES*`. The packet carries the number of the slot
/// ([`crate::decide::tag`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note<T> {
    /// Epoch at entry.
    pub epoch: u32,
    /// [`crate::layout::maps::Config::change`] at entry.
    pub change: u32,
    /// Tick at entry.
    pub when: u32,
    /// The flow at entry.
    pub tuple: T,
    /// Where the packet entered.
    pub way: Way,
    /// Destination and source MAC at entry; from the tunnel those of the inner frame.
    pub macs: [u32; 3],
    /// Tells the packet from others.
    pub print: Print,
    /// IPv4: identification and flags at entry, a word of the packet. IPv6: the first word of the header.
    pub original: u32,
    /// TTL or hop limit at entry.
    pub ttl: u8,
    /// Type of service or traffic class at entry.
    pub tos: u8,
    /// `NOTE_*`.
    pub state: u8,
    /// How many times the slot was used, see [`crate::decide::tag::note`].
    pub generation: u8,
    /// Payload bytes of one segment of an aggregate, 0 for a single packet.
    pub segment: u32,
}
const _: () = assert!(size_of::<Note<Tuple4>>() == 76 && size_of::<Note<Tuple6>>() == 100);

/// Record in the ring buffer `EVENTS`: OVS answered otherwise than the entry says, in the same epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divergence {
    /// Host veth of the endpoint that is taken off the fast path.
    pub ifindex: u32,
    /// The epoch in which both answers were given.
    pub epoch: u32,
    /// IP version, 4 or 6.
    pub family: u32,
    /// Padding; always 0.
    pub _pad: u32,
    /// The flow as it entered OVS; IPv4 in mapped form.
    pub tuple: Tuple6,
    /// The answer that the entry had.
    pub remembered: Answer,
    /// The answer that OVS gave now.
    pub ovs: Answer,
}
const _: () = assert!(size_of::<Divergence>() == 296);

/// One answer in a [`Divergence`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Interface that the packet goes to.
    pub target: u32,
    /// How much the TTL or hop limit is lowered.
    pub ttl_step: u32,
    /// The flow as OVS gave it out, and the side; IPv4 in mapped form.
    pub after: Tuple6,
    /// The front of the packet, as [`Entry::header`].
    pub header: [u64; HEADER_WORDS],
}
const _: () = assert!(size_of::<Answer>() == 120);

impl Divergence {
    /// A record from the ring buffer's bytes; `None` if they are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; size_of::<Self>()] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let address = |at: usize| [word(at), word(at + 4), word(at + 8), word(at + 12)];
        let tuple = |at: usize| Tuple6 {
            source: address(at),
            destination: address(at + 16),
            source_port: half(at + 32),
            destination_port: half(at + 34),
            protocol: bytes[at + 36],
            side: bytes[at + 37],
            _pad: 0,
        };
        let answer = |at: usize| {
            let mut header = [0; HEADER_WORDS];
            for (number, value) in header.iter_mut().enumerate() {
                let at = at + 48 + number * 8;
                *value = u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            }
            Answer { target: word(at), ttl_step: word(at + 4), after: tuple(at + 8), header }
        };
        Some(Self {
            ifindex: word(0),
            epoch: word(4),
            family: word(8),
            _pad: 0,
            tuple: tuple(16),
            remembered: answer(56),
            ovs: answer(176),
        })
    }
}
