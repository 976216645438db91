//! The packet that an ICMP error quotes (RFC 792, RFC 4443), as far as it is sure to be there: its header and the first eight bytes behind.
//! Read field by field, as programs have little stack.

use super::{Packet, TCP, UDP};
use crate::layout::flow::{Tuple4, Tuple6};

/// IP protocol numbers of ICMP for the two versions.
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

#[inline(always)]
fn byte<P: Packet>(packet: &P, at: u32) -> Option<u8> {
    packet.read::<1>(at).map(|[byte]| byte)
}

#[inline(always)]
fn half<P: Packet>(packet: &P, at: u32) -> Option<u16> {
    packet.read::<2>(at).map(u16::from_ne_bytes)
}

/// Four bytes as they are in the packet.
#[inline(always)]
fn word<P: Packet>(packet: &P, at: u32) -> Option<u32> {
    packet.read::<4>(at).map(u32::from_ne_bytes)
}

/// Offset of the IPv4 header that an ICMP error quotes whose own one, without options, is at `ip`: destination unreachable, or time
/// exceeded.
#[inline(always)]
pub fn quoted4<P: Packet>(packet: &P, ip: u32) -> Option<u32> {
    if byte(packet, ip + 9)? != ICMP || byte(packet, ip)? != 0x45 {
        return None;
    }
    let error = matches!(byte(packet, ip + 20)?, 3 | 11);
    (error && byte(packet, ip + 28)? == 0x45).then_some(ip + 28)
}

/// Offset of the IPv6 header that an ICMPv6 error quotes whose own one, without extension headers, is at `ip`.
#[inline(always)]
pub fn quoted6<P: Packet>(packet: &P, ip: u32) -> Option<u32> {
    if byte(packet, ip + 6)? != ICMP6 {
        return None;
    }
    let error = matches!(byte(packet, ip + 40)?, 1..=4);
    (error && byte(packet, ip + 48)? >> 4 == 6).then_some(ip + 48)
}

/// Whether the quoted IPv4 packet at `at` may be the one that entered OVS as `tuple` with `length` bytes from its IP header on (0: of
/// any length), of which a translation may have changed one side. The length is no option: programs would copy what is undefined where
/// there is none, which verifiers before Linux 6.3 refuse.
#[inline(always)]
pub fn is_of4<P: Packet>(packet: &P, at: u32, tuple: &Tuple4, length: u32) -> bool {
    let same = || -> Option<bool> {
        let protocol = byte(packet, at + 9)?;
        if protocol != tuple.protocol || !matches!(protocol, TCP | UDP) {
            return Some(false);
        }
        let whole = u32::from(u16::from_be(half(packet, at + 2)?));
        if length != 0 && length != whole {
            return Some(false);
        }
        let source = word(packet, at + 12)? == tuple.source && half(packet, at + 20)? == tuple.source_port;
        if source {
            return Some(true);
        }
        Some(word(packet, at + 16)? == tuple.destination && half(packet, at + 22)? == tuple.destination_port)
    };
    same().unwrap_or(false)
}

/// [`is_of4`] for IPv6.
#[inline(always)]
pub fn is_of6<P: Packet>(packet: &P, at: u32, tuple: &Tuple6, length: u32) -> bool {
    let same = || -> Option<bool> {
        let protocol = byte(packet, at + 6)?;
        if protocol != tuple.protocol || !matches!(protocol, TCP | UDP) {
            return Some(false);
        }
        let whole = u32::from(u16::from_be(half(packet, at + 4)?)) + 40;
        if length != 0 && length != whole {
            return Some(false);
        }
        let source = address(packet, at + 8, &tuple.source) && half(packet, at + 40)? == tuple.source_port;
        if source {
            return Some(true);
        }
        Some(address(packet, at + 24, &tuple.destination) && half(packet, at + 42)? == tuple.destination_port)
    };
    same().unwrap_or(false)
}

#[inline(always)]
fn address<P: Packet>(packet: &P, at: u32, words: &[u32; 4]) -> bool {
    let mut number = 0;
    while number < 4 {
        let Some(word) = word(packet, at + number * 4) else { return false };
        if word != words[number as usize] {
            return false;
        }
        number += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use std::vec::Vec;

    use super::*;

    extern crate std;

    fn udp(six: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = if six {
            PacketBuilder::ipv6([1; 16], [2; 16], 64)
        } else {
            PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        };
        builder.udp(1000, 2000).write(&mut bytes, &[7; 30]).unwrap();
        bytes
    }

    /// An error about `quoted`, behind an Ethernet header.
    fn error(six: bool, kind: u8, quoted: &[u8]) -> Vec<u8> {
        let mut bytes = std::vec![0; 14];
        let icmp = [&[kind, 3, 0, 0, 0, 0, 0, 0], quoted].concat();
        if six {
            let header = etherparse::Ipv6Header {
                payload_length: u16::try_from(icmp.len()).unwrap(),
                next_header: etherparse::IpNumber(ICMP6),
                ..etherparse::Ipv6Header::default()
            };
            bytes.extend(header.to_bytes());
        } else {
            let length = u16::try_from(icmp.len()).unwrap();
            let header = etherparse::Ipv4Header::new(length, 64, etherparse::IpNumber(ICMP), [0; 4], [0; 4]);
            bytes.extend(header.unwrap().to_bytes());
        }
        bytes.extend(icmp);
        bytes
    }

    fn four() -> Tuple4 {
        let ip = |last| u32::from_ne_bytes([10, 0, 0, last]);
        Tuple4 {
            source: ip(1),
            destination: ip(2),
            source_port: 1000_u16.to_be(),
            destination_port: 2000_u16.to_be(),
            protocol: UDP,
            side: 0,
            _pad: 0,
        }
    }

    fn six() -> Tuple6 {
        Tuple6 {
            source: [0x0101_0101; 4],
            destination: [0x0202_0202; 4],
            source_port: 1000_u16.to_be(),
            destination_port: 2000_u16.to_be(),
            protocol: UDP,
            side: 0,
            _pad: 0,
        }
    }

    #[test]
    fn what_an_error_quotes_is_known_by_flow_and_length_with_one_side_translated_at_most() {
        let packet = error(false, 3, &udp(false));
        let packet = packet.as_slice();
        let at = quoted4(&packet, 14).unwrap();
        assert_eq!(at, 14 + 28);
        let tuple = four();
        assert!(is_of4(&packet, at, &tuple, 58) && is_of4(&packet, at, &tuple, 0));
        assert!(!is_of4(&packet, at, &tuple, 59));
        let (source, port) = (Tuple4 { source: 0, ..tuple }, Tuple4 { destination_port: 0, ..tuple });
        assert!(is_of4(&packet, at, &source, 58) && is_of4(&packet, at, &port, 58));
        assert!(!is_of4(&packet, at, &Tuple4 { source: 0, ..port }, 58));
        assert!(!is_of4(&packet, at, &Tuple4 { protocol: TCP, ..tuple }, 58));

        let packet = error(true, 1, &udp(true));
        let packet = packet.as_slice();
        let at = quoted6(&packet, 14).unwrap();
        assert_eq!(at, 14 + 48);
        let tuple = six();
        assert!(is_of6(&packet, at, &tuple, 78) && is_of6(&packet, at, &tuple, 0));
        assert!(!is_of6(&packet, at, &tuple, 79));
        let (source, port) = (Tuple6 { source: [0; 4], ..tuple }, Tuple6 { destination_port: 0, ..tuple });
        assert!(is_of6(&packet, at, &source, 78) && is_of6(&packet, at, &port, 78));
        assert!(!is_of6(&packet, at, &Tuple6 { source: [0; 4], ..port }, 78));
        assert!(!is_of6(&packet, at, &Tuple6 { protocol: TCP, ..tuple }, 78));
    }

    #[test]
    fn what_is_no_error_or_cut_short_quotes_nothing() {
        for (version, kind) in [(false, 8), (true, 128)] {
            let packet = error(version, kind, &udp(version));
            assert!(quoted4(&packet.as_slice(), 14).is_none() && quoted6(&packet.as_slice(), 14).is_none());
            let plain = [&[0; 14], udp(version).as_slice()].concat();
            assert!(quoted4(&plain.as_slice(), 14).is_none() && quoted6(&plain.as_slice(), 14).is_none());
        }
        for version in [false, true] {
            let packet = error(version, 3, &udp(version));
            // With the port of the side that is looked at last.
            let needed = if version { 14 + 40 + 8 + 42 } else { 14 + 20 + 8 + 22 };
            for length in 0..packet.len() {
                let short = &packet[..length];
                let four = quoted4(&short, 14).is_some_and(|at| is_of4(&short, at, &four(), 0));
                let six = quoted6(&short, 14).is_some_and(|at| is_of6(&short, at, &six(), 0));
                assert_eq!(four || six, length >= needed, "{length}");
            }
        }
    }
}
