//! Why a packet was not treated as an ordinary one. Every reason has its own counter in the map `REASONS`.
//!
//! A reason is never a verdict: the packet is counted and goes on to OVS, which decides (law 2 of the design). The one
//! exception is [`Reason::DroppedChanged`].

/// Why a packet was counted apart. The number is the index into `REASONS`; numbers are never reused, only added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Reason {
    /// Fewer bytes than an Ethernet header (14) with its VLAN tags.
    TruncatedEthernet = 0,
    /// Fewer bytes than the IP header, or than the length the IP header states.
    TruncatedIp = 1,
    /// The version field does not match the EtherType.
    BadIpVersion = 2,
    /// IPv4 header length below 5 words.
    BadIpHeaderLength = 3,
    /// IPv4 total length shorter than its own header.
    BadIpLength = 4,
    /// More IPv6 extension headers than [`crate::parse::MAX_EXTENSION_HEADERS`].
    TooManyExtensionHeaders = 5,
    /// Fewer bytes than a UDP header (8).
    TruncatedUdp = 6,
    /// UDP length below 8, or beyond the IP payload.
    BadUdpLength = 7,
    /// Fewer bytes than a Geneve base header (8) behind the UDP header.
    TruncatedGeneve = 8,
    /// Geneve version other than 0 (RFC 8926, 3.4).
    BadGeneveVersion = 9,
    /// The Geneve options would reach beyond the UDP payload.
    OptionsBeyondPacket = 10,
    /// One Geneve option would reach beyond the space given to all of them.
    OptionOverrun = 11,
    /// The Geneve payload is not Ethernet (0x6558); OVS drops such packets.
    BadProtocolType = 12,
    /// The Geneve payload is shorter than an Ethernet header.
    TruncatedInner = 13,
    /// A UDP fragment on the uplink. Well-formed, but it cannot be told which tunnel it belongs to.
    Fragment = 14,
    /// The interface has no entry in `ENDPOINTS`: the packet went on without being counted for a port.
    UnknownPort = 15,
    /// `TUNNEL_STATS` is full: the packet was not counted for its tunnel.
    TunnelMapFull = 16,
    /// IPv4 options, or IPv6 extension headers: not for the fast path.
    Options = 17,
    /// A fragment: not for the fast path.
    PodFragment = 18,
    /// Neither TCP nor UDP.
    OtherProtocol = 19,
    /// Neither IPv4 nor IPv6 (ARP and the like).
    NotIp = 20,
    /// With a VLAN tag.
    Tagged = 21,
    /// To a group address.
    Multicast = 22,
    /// TTL or hop limit too low to be lowered.
    LowTtl = 23,
    /// The headers' lengths do not agree with the packet's: padding, or an aggregate above 65,535 bytes.
    OddLength = 24,
    /// TCP data offset below 5 words or beyond the packet.
    BadTcpHeader = 25,
    /// TCP without ACK: connection tracking calls it invalid.
    TcpFlags = 26,
    /// TCP with SYN, FIN or RST: OVS follows the connection's state.
    TcpHandshake = 27,
    /// Source address or MAC is not the one bound to the port.
    SourceMismatch = 28,
    /// With the tunnel's headers it would not fit the uplink's MTU, or 65,535 bytes.
    TooLong = 29,
    /// A Geneve packet that is not for this node's tunnel endpoint.
    OtherDestination = 30,
    /// The outer IPv4 header has options, is a fragment or has a wrong checksum.
    OuterHeader = 31,
    /// The outer UDP checksum is not 0: OVS is to verify it.
    OuterChecksum = 32,
    /// The outer ECN bits are CE, or differ from the inner ones.
    CongestionMark = 33,
    /// Geneve with anything else than OVN's one option.
    OtherOptions = 34,
    /// The fast path is closed on this node.
    GateClosed = 35,
    /// TCP is closed on this node: connection tracking would not take it back.
    TcpGateClosed = 36,
    /// The endpoint is not on the fast path.
    EndpointSlow = 37,
    /// OVS answered otherwise than remembered for this endpoint, in this epoch.
    EndpointDiverged = 38,
    /// No entry.
    Miss = 39,
    /// The entry is of another epoch.
    Stale = 40,
    /// The entry was learned with other MAC addresses.
    MacMismatch = 41,
    /// The other direction of the connection was not seen yet.
    Waiting = 42,
    /// The packet by which an entry is refreshed.
    Probe = 43,
    /// OVS did not let the refresh packet through; the entry is gone.
    Dead = 44,
    /// Nobody used the entry for long after its deadline; it is learned anew.
    Overdue = 45,
    /// The kernel refused to make or take room for headers; the packet was not changed.
    RoomRefused = 46,
    /// Dropped: a helper failed after the packet was changed.
    DroppedChanged = 47,
    /// An entry was made.
    Learned = 48,
    /// OVS gave the same answer again.
    Refreshed = 49,
    /// OVS gave another answer in the same epoch.
    Diverged = 50,
    /// OVS chose another outer UDP source port; the entry follows.
    PortChanged = 51,
    /// A packet came out of OVS that was not noted, or that OVS changed (NAT).
    NoteMissing = 52,
    /// It entered OVS in an earlier epoch: nothing is learned from it.
    NoteOldEpoch = 53,
    /// It was inside OVS for too long: nothing is learned from it.
    NoteExpired = 54,
    /// Not noted: an earlier packet of the flow may still be inside OVS, or OVS changes the flow.
    NoteKept = 55,
    /// Not learned: the flow table is changing.
    LearningOff = 56,
    /// Not learned: the agent has not been heard of.
    NoHeartbeat = 57,
    /// Not learned: too many new flows.
    OverBudget = 58,
    /// Not learned: the connection is being closed.
    Closing = 59,
    /// Both directions of a connection were taken out of the cache.
    Closed = 60,
    /// Not learned: the map refused the entry.
    InsertFailed = 61,
    /// A record for the agent found no room in the ring buffer.
    EventLost = 62,
    /// Not noted: the outer source is of no tunnel that OVS has.
    UnknownRemote = 63,
    /// On its way out like a tunnel packet of this node, but not as OVS sends them, or to an address that OVS has no tunnel to.
    ForeignTunnel = 64,
    /// The entry is for packets with another DSCP: OVS may decide by it.
    DscpMismatch = 65,
}

/// Slots of the map `REASONS`. Larger than [`Reason::ALL`], so that a new reason does not change the map's layout.
pub const REASON_SLOTS: u32 = 96;

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 66] = [
        Self::TruncatedEthernet,
        Self::TruncatedIp,
        Self::BadIpVersion,
        Self::BadIpHeaderLength,
        Self::BadIpLength,
        Self::TooManyExtensionHeaders,
        Self::TruncatedUdp,
        Self::BadUdpLength,
        Self::TruncatedGeneve,
        Self::BadGeneveVersion,
        Self::OptionsBeyondPacket,
        Self::OptionOverrun,
        Self::BadProtocolType,
        Self::TruncatedInner,
        Self::Fragment,
        Self::UnknownPort,
        Self::TunnelMapFull,
        Self::Options,
        Self::PodFragment,
        Self::OtherProtocol,
        Self::NotIp,
        Self::Tagged,
        Self::Multicast,
        Self::LowTtl,
        Self::OddLength,
        Self::BadTcpHeader,
        Self::TcpFlags,
        Self::TcpHandshake,
        Self::SourceMismatch,
        Self::TooLong,
        Self::OtherDestination,
        Self::OuterHeader,
        Self::OuterChecksum,
        Self::CongestionMark,
        Self::OtherOptions,
        Self::GateClosed,
        Self::TcpGateClosed,
        Self::EndpointSlow,
        Self::EndpointDiverged,
        Self::Miss,
        Self::Stale,
        Self::MacMismatch,
        Self::Waiting,
        Self::Probe,
        Self::Dead,
        Self::Overdue,
        Self::RoomRefused,
        Self::DroppedChanged,
        Self::Learned,
        Self::Refreshed,
        Self::Diverged,
        Self::PortChanged,
        Self::NoteMissing,
        Self::NoteOldEpoch,
        Self::NoteExpired,
        Self::NoteKept,
        Self::LearningOff,
        Self::NoHeartbeat,
        Self::OverBudget,
        Self::Closing,
        Self::Closed,
        Self::InsertFailed,
        Self::EventLost,
        Self::UnknownRemote,
        Self::ForeignTunnel,
        Self::DscpMismatch,
    ];

    /// Index into the map `REASONS`.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Name as used in metrics and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TruncatedEthernet => "truncated_ethernet",
            Self::TruncatedIp => "truncated_ip",
            Self::BadIpVersion => "bad_ip_version",
            Self::BadIpHeaderLength => "bad_ip_header_length",
            Self::BadIpLength => "bad_ip_length",
            Self::TooManyExtensionHeaders => "too_many_extension_headers",
            Self::TruncatedUdp => "truncated_udp",
            Self::BadUdpLength => "bad_udp_length",
            Self::TruncatedGeneve => "truncated_geneve",
            Self::BadGeneveVersion => "bad_geneve_version",
            Self::OptionsBeyondPacket => "options_beyond_packet",
            Self::OptionOverrun => "option_overrun",
            Self::BadProtocolType => "bad_protocol_type",
            Self::TruncatedInner => "truncated_inner",
            Self::Fragment => "fragment",
            Self::UnknownPort => "unknown_port",
            Self::TunnelMapFull => "tunnel_map_full",
            Self::Options => "ip_options",
            Self::PodFragment => "ip_fragment",
            Self::OtherProtocol => "other_protocol",
            Self::NotIp => "not_ip",
            Self::Tagged => "vlan",
            Self::Multicast => "multicast",
            Self::LowTtl => "low_ttl",
            Self::OddLength => "odd_length",
            Self::BadTcpHeader => "bad_tcp_header",
            Self::TcpFlags => "tcp_flags",
            Self::TcpHandshake => "tcp_handshake",
            Self::SourceMismatch => "source_mismatch",
            Self::TooLong => "too_long",
            Self::OtherDestination => "other_destination",
            Self::OuterHeader => "outer_header",
            Self::OuterChecksum => "outer_checksum",
            Self::CongestionMark => "congestion_mark",
            Self::OtherOptions => "other_options",
            Self::GateClosed => "gate_closed",
            Self::TcpGateClosed => "tcp_gate_closed",
            Self::EndpointSlow => "endpoint_slow",
            Self::EndpointDiverged => "endpoint_diverged",
            Self::Miss => "miss",
            Self::Stale => "stale",
            Self::MacMismatch => "mac_mismatch",
            Self::Waiting => "waiting",
            Self::Probe => "probe",
            Self::Dead => "dead",
            Self::Overdue => "overdue",
            Self::RoomRefused => "room_refused",
            Self::DroppedChanged => "dropped_changed",
            Self::Learned => "learned",
            Self::Refreshed => "refreshed",
            Self::Diverged => "diverged",
            Self::PortChanged => "source_port_changed",
            Self::NoteMissing => "note_missing",
            Self::NoteOldEpoch => "note_old_epoch",
            Self::NoteExpired => "note_expired",
            Self::NoteKept => "note_kept",
            Self::LearningOff => "learning_off",
            Self::NoHeartbeat => "no_heartbeat",
            Self::OverBudget => "over_budget",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::InsertFailed => "insert_failed",
            Self::EventLost => "event_lost",
            Self::UnknownRemote => "unknown_remote",
            Self::ForeignTunnel => "foreign_tunnel",
            Self::DscpMismatch => "dscp_mismatch",
        }
    }

    /// Whether the packet itself was wrong, as opposed to one that is in order and took the slow path, or could not be
    /// counted.
    pub const fn is_malformed(self) -> bool {
        self.index() < Self::Fragment.index() || matches!(self, Self::BadTcpHeader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_slot_inside_the_map() {
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.index() as usize, position, "{}", reason.as_str());
            assert!(reason.index() < REASON_SLOTS);
        }
    }

    #[test]
    fn names_are_unique() {
        for (i, a) in Reason::ALL.iter().enumerate() {
            for b in &Reason::ALL[i + 1..] {
                assert_ne!(a.as_str(), b.as_str());
            }
        }
    }
}
