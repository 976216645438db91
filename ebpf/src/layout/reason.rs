//! Why a packet was not treated as an ordinary one. Every reason has its own counter in the map `REASONS`.
//!
//! A reason is never a verdict: the packet is counted and goes on to OVS, which decides what becomes of it. The one exception is
//! [`Reason::DroppedChanged`]. A few reasons count no packet on its own: what was learned ([`Reason::Learned`] and the next ones), and
//! what found no room.

/// Makes the enum, the list of all reasons and their names out of one table: `Name = number "name in metrics"`.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal,)*) => {
        /// Why a packet was counted apart. The number is the index into the map `REASONS`: it is never used for another reason later.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Reason {
            $($(#[$doc])* $name = $number,)*
        }

        impl Reason {
            /// Every reason, in the order of the numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$name),*];

            /// Name in metrics and messages: the enum's name in `snake_case`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
        /// Fewer bytes than an Ethernet header (14) with its VLAN tags.
        TruncatedEthernet = 0 "truncated_ethernet",
        /// Fewer bytes than the IP header, or than the length the IP header states.
        TruncatedIp = 1 "truncated_ip",
        /// The version field does not match the EtherType.
        BadIpVersion = 2 "bad_ip_version",
        /// IPv4 header length below 5 words.
        BadIpHeaderLength = 3 "bad_ip_header_length",
        /// IPv4 total length shorter than its own header.
        BadIpLength = 4 "bad_ip_length",
        /// More IPv6 extension headers than [`crate::packet::MAX_EXTENSION_HEADERS`].
        TooManyExtensionHeaders = 5 "too_many_extension_headers",
        /// Fewer bytes than a UDP header (8).
        TruncatedUdp = 6 "truncated_udp",
        /// UDP length below 8, or beyond the IP payload.
        BadUdpLength = 7 "bad_udp_length",
        /// Fewer bytes than a Geneve base header (8) behind the UDP header.
        TruncatedGeneve = 8 "truncated_geneve",
        /// Geneve version other than 0 (RFC 8926, 3.4).
        BadGeneveVersion = 9 "bad_geneve_version",
        /// The Geneve options would reach beyond the UDP payload.
        OptionsBeyondPacket = 10 "options_beyond_packet",
        /// One Geneve option would reach beyond the space given to all of them.
        OptionOverrun = 11 "option_overrun",
        /// The Geneve payload is not Ethernet (0x6558); OVS drops such packets.
        BadProtocolType = 12 "bad_protocol_type",
        /// The Geneve payload is shorter than an Ethernet header.
        TruncatedInner = 13 "truncated_inner",
        /// A UDP fragment on the uplink. Well-formed, but it cannot be told which tunnel it belongs to.
        Fragment = 14 "fragment",
        /// The interface has no entry in `ENDPOINTS`: the packet went on without being counted for a port.
        UnknownPort = 15 "unknown_port",
        /// `TUNNEL_STATS` is full: the packet was not counted for its tunnel.
        TunnelMapFull = 16 "tunnel_map_full",
        /// IPv4 options, or IPv6 extension headers: not for the fast path.
        IpOptions = 17 "ip_options",
        /// A fragment: not for the fast path.
        IpFragment = 18 "ip_fragment",
        /// Neither TCP nor UDP.
        OtherProtocol = 19 "other_protocol",
        /// Neither IPv4 nor IPv6 (ARP and the like).
        NotIp = 20 "not_ip",
        /// With a VLAN tag.
        Vlan = 21 "vlan",
        /// To a group address.
        Multicast = 22 "multicast",
        /// TTL or hop limit too low to be lowered.
        LowTtl = 23 "low_ttl",
        /// The headers' lengths do not agree with the packet's: padding, or an aggregate above 65,535 bytes.
        OddLength = 24 "odd_length",
        /// TCP data offset below 5 words or beyond the packet.
        BadTcpHeader = 25 "bad_tcp_header",
        /// TCP without ACK: connection tracking calls it invalid.
        TcpFlags = 26 "tcp_flags",
        /// TCP with SYN, FIN or RST: OVS follows the connection's state. With SYN and ACK it is noted.
        TcpHandshake = 27 "tcp_handshake",
        /// Source address or MAC is not the one bound to the port.
        SourceMismatch = 28 "source_mismatch",
        /// With the tunnel's headers it would not fit the uplink's MTU, or 65,535 bytes.
        TooLong = 29 "too_long",
        /// On the uplink: a Geneve packet that is not for this node's tunnel endpoint, or another one that is not for its MAC.
        OtherDestination = 30 "other_destination",
        /// The outer IPv4 header has options, is a fragment or has a wrong checksum.
        OuterHeader = 31 "outer_header",
        /// The outer UDP checksum is not 0: OVS is to verify it.
        OuterChecksum = 32 "outer_checksum",
        /// The outer ECN bits are CE, or differ from the inner ones.
        CongestionMark = 33 "congestion_mark",
        /// Geneve with anything else than OVN's one option.
        OtherOptions = 34 "other_options",
        /// The fast path is closed on this node.
        GateClosed = 35 "gate_closed",
        /// TCP is closed on this node: connection tracking would not take it back.
        TcpGateClosed = 36 "tcp_gate_closed",
        /// The endpoint is not on the fast path.
        EndpointSlow = 37 "endpoint_slow",
        /// OVS answered otherwise than remembered for this endpoint, in this epoch.
        EndpointDiverged = 38 "endpoint_diverged",
        /// No entry.
        Miss = 39 "miss",
        /// The entry is of another epoch.
        Stale = 40 "stale",
        /// The entry was learned with other MAC addresses.
        MacMismatch = 41 "mac_mismatch",
        /// The other direction of the connection was not seen yet.
        Waiting = 42 "waiting",
        /// The packet by which an entry is refreshed.
        Probe = 43 "probe",
        /// OVS did not let the refresh packet through; the entry is gone.
        Dead = 44 "dead",
        /// Nobody used the entry for long after its deadline, or its service was kept off the cache until then; it is learned anew.
        Overdue = 45 "overdue",
        /// The kernel refused to make or take room for headers; the packet was not changed.
        RoomRefused = 46 "room_refused",
        /// Dropped: a helper failed after the packet was changed.
        DroppedChanged = 47 "dropped_changed",
        /// An entry was made.
        Learned = 48 "learned",
        /// OVS gave the same answer again.
        Refreshed = 49 "refreshed",
        /// OVS gave another answer in the same epoch.
        Diverged = 50 "diverged",
        /// OVS chose another outer UDP source port; the entry follows.
        SourcePortChanged = 51 "source_port_changed",
        /// A packet came out of OVS that was not noted.
        NoteMissing = 52 "note_missing",
        /// The packet entered OVS in an earlier epoch: nothing is learned from it.
        NoteOldEpoch = 53 "note_old_epoch",
        /// The packet was inside OVS for longer than a note is valid: nothing is learned from it.
        NoteExpired = 54 "note_expired",
        /// Not noted: the packet has a priority of another program, where a tag would be.
        PriorityTaken = 55 "priority_taken",
        /// Not learned: the flow table is changing.
        LearningOff = 56 "learning_off",
        /// Not learned: the agent has not been heard of.
        NoHeartbeat = 57 "no_heartbeat",
        /// Not learned: too many new flows.
        OverBudget = 58 "over_budget",
        /// Not learned, or not carried: the connection is over, or this direction of it.
        Closing = 59 "closing",
        /// SYN or RST took a connection out of the cache, or FIN a direction of one.
        Closed = 60 "closed",
        /// Not learned: the map refused the entry.
        InsertFailed = 61 "insert_failed",
        /// A record for the agent found no room in the ring buffer.
        EventLost = 62 "event_lost",
        /// Not noted: the outer source is of no tunnel that OVS has.
        UnknownRemote = 63 "unknown_remote",
        /// On its way out like a tunnel packet of this node, but not as OVS sends them, or to an address that OVS has no tunnel to.
        ForeignTunnel = 64 "foreign_tunnel",
        /// The entry is for packets with another DSCP: OVS may decide by it.
        DscpMismatch = 65 "dscp_mismatch",
        /// The entry is for packets that come by another port or tunnel.
        OtherWay = 66 "other_way",
        /// Not noted: every slot of this CPU has a note that is too young.
        NoSlot = 67 "no_slot",
        /// Not learned: the packet that came out of OVS is not the one that the note is of.
        OtherPacket = 68 "other_packet",
        /// Not learned: OVS changed what an entry cannot repeat.
        OtherChange = 69 "other_change",
        /// Not learned: OVS gave the packet back where it came from, as an answer or to the pod itself.
        SentBack = 70 "sent_back",
        /// OVS gave out one packet several times: what was learned from it is gone.
        SeveralOut = 71 "several_out",
        /// A packet had our mark when it came: it was taken off. Senders have no use for the reserved flag of IPv4.
        ForeignMark = 72 "foreign_mark",
        /// A packet came out of OVS with a mark that has no note.
        StrayMark = 73 "stray_mark",
        /// Not noted: packets of this port took too many notes on this CPU lately.
        PortBudget = 74 "port_budget",
        /// A tunnel's packet of the node, or on the uplink, that is not of OVN's Geneve over IPv4.
        TunnelPacket = 75 "tunnel_packet",
        /// Packet of a service that is kept off the flow cache (`slipctl path service`): OVS has each of its packets.
        ServiceSlow = 76 "service_slow",
        /// Something that concerns the entry has changed.
        ScopeChanged = 77 "scope_changed",
        /// Not learned: something that concerns the flow has changed since the packet entered OVS.
        NoteOldScope = 78 "note_old_scope",
        /// Not learned: what concerns the flow is changing.
        ScopeClosed = 79 "scope_closed",
        /// Not noted: the first UDP packet of a flow for a while. The next one is.
        FirstPacket = 80 "first_packet",
        /// Sent back out of the uplink by the XDP program. Counted beside what the packet is counted for otherwise.
        XdpForwarded = 81 "xdp_forwarded",
        /// Dropped by the XDP program, as `--xdp-unknown-tunnel` says: Geneve from an address that OVS has no tunnel to.
        XdpUnknownTunnel = 82 "xdp_unknown_tunnel",
        /// Dropped by the XDP program, as `--xdp-unknown-tunnel` says: malformed Geneve. What is wrong is counted too.
        XdpMalformedTunnel = 83 "xdp_malformed_tunnel",
        /// The entry's answer is likely, not certain: OVS must give it to some more packets.
        Likely = 84 "likely",
        /// OVS gave an answer that is likely, not certain, and is not the entry's: the entry is gone.
        Disagreed = 85 "disagreed",
}

/// Slots of the map `REASONS`. More than there are reasons, so that a new reason does not change the map's layout.
pub const REASON_SLOTS: u32 = 96;

impl Reason {
    /// Index into the map `REASONS`.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Whether the packet itself was wrong, as opposed to one that is in order and took the slow path, or could not be
    /// counted.
    pub const fn is_malformed(self) -> bool {
        self.index() < Self::Fragment.index() || matches!(self, Self::BadTcpHeader)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{borrow::ToOwned as _, format};

    use super::*;

    #[test]
    fn every_reason_has_its_own_slot_inside_the_map() {
        assert!(Reason::ALL.iter().all(|reason| reason.index() < REASON_SLOTS));
        for pair in Reason::ALL.windows(2) {
            assert!(pair[0].index() < pair[1].index(), "{}", pair[1].as_str());
        }
    }

    #[test]
    fn names_are_those_of_the_enum_in_snake_case() {
        for reason in Reason::ALL {
            let mut rest = reason.as_str().split('_');
            let mut name = format!("{reason:?}");
            for word in &mut rest {
                let (first, more) = name.split_at(word.len().min(name.len()));
                assert!(first.eq_ignore_ascii_case(word), "{reason:?} is called {}", reason.as_str());
                assert!(first.starts_with(|c: char| c.is_ascii_uppercase()), "{reason:?}");
                name = more.to_owned();
            }
            assert_eq!(name, "", "{reason:?} is called {}", reason.as_str());
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
