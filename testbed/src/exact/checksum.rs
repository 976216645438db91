//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

/// A sum of 16-bit words that is not folded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Sum {
    /// With bytes that begin at an even place; an odd last one is followed by a zero.
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let words = bytes
            .chunks(2)
            .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()])));
        Self(self.0 + words.sum::<u64>())
    }

    /// With one word.
    pub(super) fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// Folded to 16 bits.
    pub(super) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::try_from(sum).unwrap_or(u16::MAX)
    }

    /// As a header has it.
    pub(super) fn complement(self) -> u16 {
        !self.folded()
    }
}

/// What TCP, UDP and ICMPv6 sum up besides their own bytes (RFC 9293, 3.1; RFC 8200, 8.1).
pub(super) fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Sum {
    let address = |sum: Sum, ip: IpAddr| match ip {
        IpAddr::V4(ip) => sum.add(&ip.octets()),
        IpAddr::V6(ip) => sum.add(&ip.octets()),
    };
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let sum = address(address(Sum::default(), source), destination).word(protocol.into());
    sum.add(&length.to_be_bytes())
}
