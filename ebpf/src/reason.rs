//! Why a packet was not treated as an ordinary one. Every reason has its own counter in the map `REASONS`.
//!
//! A reason is never a verdict: the packet is counted and goes on to OVS, which decides (law 2 of the design).

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
}

/// Slots of the map `REASONS`. Larger than [`Reason::ALL`], so that a new reason does not change the map's layout.
pub const REASON_SLOTS: u32 = 64;

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 17] = [
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
        }
    }

    /// Whether the packet itself was wrong, as opposed to one that is in order but could not be counted.
    pub const fn is_malformed(self) -> bool {
        !matches!(self, Self::Fragment | Self::UnknownPort | Self::TunnelMapFull)
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
