//! Text form of a flow: `PROTO SRC:PORT DST:PORT`, IPv6 as `[ADDRESS]:PORT`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A protocol that the flow cache supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachedProtocol {
    /// TCP, protocol number 6.
    Tcp,
    /// UDP, protocol number 17.
    Udp,
}

impl CachedProtocol {
    /// Protocol number in the IP header (IANA).
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// The protocol with this number; `None` if the flow cache does not support it.
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// `tcp` or `udp`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for CachedProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CachedProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => Err(format!("protocol `{text}` is not supported by the flow cache; use tcp or udp")),
        }
    }
}

/// A flow in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowSpec {
    /// Protocol.
    pub protocol: CachedProtocol,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
}

impl FlowSpec {
    /// Parses the three words of a flow.
    ///
    /// # Errors
    /// A word is malformed, or the two addresses are of different IP versions. The error names the word and the expected form.
    pub fn parse(protocol: &str, source: &str, destination: &str) -> Result<Self, String> {
        let flow = Self {
            protocol: protocol.parse()?,
            source: end("source", source)?,
            destination: end("destination", destination)?,
        };
        if flow.source.is_ipv4() != flow.destination.is_ipv4() {
            return Err(format!(
                "source `{source}` and destination `{destination}` are of different IP versions; both must be IPv4 or both IPv6"
            ));
        }
        Ok(flow)
    }
}

fn end(which: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_unspecific| {
        format!(
            "{which} `{text}` is not an address with a port; write it as 10.244.0.3:8080 or [fd00::3]:8080"
        )
    })
}

impl fmt::Display for FlowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.protocol, self.source, self.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_reads_back_as_it_is_written() {
        for words in [["tcp", "10.244.0.3:40000", "10.244.1.4:80"], ["udp", "[fd00::3]:1", "[fd00::4]:53"]] {
            let flow = FlowSpec::parse(words[0], words[1], words[2]).unwrap();
            assert_eq!(flow.to_string(), words.join(" "));
        }
        assert_eq!("TCP".parse::<CachedProtocol>().unwrap().number(), 6);
    }

    #[test]
    fn an_error_names_the_wrong_word_and_what_would_be_right() {
        for (words, wrong, right) in [
            (["icmp", "1.2.3.4:1", "1.2.3.5:1"], "`icmp`", "tcp or udp"),
            (["tcp", "1.2.3.4", "1.2.3.5:1"], "source `1.2.3.4`", "10.244.0.3:8080"),
            (["tcp", "1.2.3.4:1", "fd00::1:1"], "destination `fd00::1:1`", "[fd00::3]:8080"),
            (["tcp", "1.2.3.4:1", "[fd00::1]:1"], "different IP versions", "both must be IPv4"),
            (["tcp", "1.2.3.4:70000", "1.2.3.5:1"], "`1.2.3.4:70000`", "with a port"),
        ] {
            let error = FlowSpec::parse(words[0], words[1], words[2]).unwrap_err();
            assert!(error.contains(wrong) && error.contains(right), "{error}");
        }
    }
}
