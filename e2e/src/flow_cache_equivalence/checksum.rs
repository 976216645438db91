//! The Internet checksum (RFC 1071) of packets whose every byte is chosen: of headers with anything in them, of checksums that are
//! left to the device and so are only begun, and of wrong ones. etherparse does the arithmetic; its builders would make all of
//! them right, or not at all.

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;

/// A sum of 16-bit words that is not folded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(Sum16BitWords);

impl Sum {
    /// With bytes that begin at an even place; an odd last one is followed by a zero.
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        Self(self.0.add_slice(bytes))
    }

    /// With one word.
    pub(super) fn word(self, word: u16) -> Self {
        Self(self.0.add_2bytes(word.to_be_bytes()))
    }

    /// Folded to 16 bits: what a checksum that is left to the device begins with.
    pub(super) fn folded(&self) -> u16 {
        !self.complement()
    }

    /// As a header has it.
    pub(super) fn complement(&self) -> u16 {
        self.0.ones_complement().to_be()
    }

    /// As `complement`, but never 0, which would mean that there is no checksum (RFC 768). Linux does the same for TCP.
    pub(super) fn complement_not_zero(&self) -> u16 {
        self.0.to_ones_complement_with_no_zero().to_be()
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

/// Corrects the checksum of a complete IPv4 header. A truncated one stays as it is.
pub(super) fn fix_ipv4(header: &mut [u8]) {
    let Some(field) = header.get_mut(10..12) else { return };
    field.fill(0);
    let sum = Sum::default().add(header).complement();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_headers_are_those_of_the_standards() {
        // RFC 1071, 3: the bytes 00 01 f2 03 f4 f5 f6 f7 sum up to ddf2.
        let sum = Sum::default().add(&[0x00, 0x01, 0xf2, 0x03]).word(0xf4f5).add(&[0xf6, 0xf7]);
        assert_eq!((sum.folded(), sum.complement()), (0xddf2, !0xddf2));
        assert_eq!(Sum::default().add(&[0x12]).folded(), 0x1200);
        let ones = Sum::default().word(0xffff);
        assert_eq!((ones.complement(), ones.complement_not_zero()), (0, 0xffff));
        let header =
            etherparse::Ipv4Header::new(8, 64, etherparse::IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]);
        let header = header.unwrap();
        let mut bytes = header.to_bytes();
        fix_ipv4(&mut bytes);
        assert_eq!(bytes[10..12], header.calc_header_checksum().to_be_bytes());
    }
}
