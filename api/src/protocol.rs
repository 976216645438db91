//! Transport protocols of services, host ports and policies.

use std::fmt;

/// A transport protocol for which Kubernetes has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Parses Kubernetes' spelling, `TCP`, `UDP` or `SCTP`; an absent protocol is TCP. `None` for any other.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// `tcp`, `udp` or `sctp`, as OVN and nftables write it.
    pub fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// `TCP`, `UDP` or `SCTP`, as Kubernetes writes it.
    pub fn upper(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lower())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_absence_is_tcp() {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            assert_eq!(Protocol::parse(Some(protocol.upper())), Some(protocol));
            assert_eq!(protocol.to_string(), protocol.upper().to_lowercase());
        }
        assert_eq!(Protocol::parse(None), Some(Protocol::Tcp));
        assert_eq!(Protocol::parse(Some("ICMP")), None);
    }
}
