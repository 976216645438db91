//! The frame that is sent, and where it differs from one to the next. Pure.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail, ensure};
use etherparse::PacketBuilder;

use crate::frames::geneve;

/// MAC addresses of sender and receiver.
pub(super) type Macs = ([u8; 6], [u8; 6]);

/// Ethernet header; a port's place in a UDP header and the checksum's.
const ETHERNET: usize = 14;
const CHECKSUM: usize = 6;
/// Headers that OVN puts in front of a frame: Ethernet, IPv4, UDP, Geneve and its option.
const AROUND: usize = 14 + 20 + 8 + 8 + 8;
/// Shortest frame on a wire, without its check sequence, and the longest that live frames have room for in a page.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// A tunnel around the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tunnel {
    pub(super) macs: Macs,
    pub(super) from: [u8; 4],
    pub(super) to: [u8; 4],
    pub(super) vni: u8,
    /// Data of OVN's option: keys of the ports.
    pub(super) keys: [u8; 4],
}

/// What is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Addresses of the frame without a tunnel.
    pub(super) macs: Macs,
    pub(super) from: IpAddr,
    pub(super) to: SocketAddr,
    /// Bytes from the first Ethernet header to the end.
    pub(super) length: usize,
    pub(super) tunnel: Option<Tunnel>,
}

/// A frame whose source port is 0, and where ports and sums go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// Offset of the source port.
    pub(super) port_at: usize,
    /// Offset of the checksum that covers it.
    pub(super) checksum_at: usize,
    /// One's complement sum, in wire order, of all that the checksum covers but the port.
    pub(super) sum: u16,
}

impl Frame {
    pub(super) fn new(wanted: &Wanted) -> Result<Self> {
        let around = if wanted.tunnel.is_some() { AROUND } else { 0 };
        let ip = if wanted.to.is_ipv4() { 20 } else { 40 };
        let headers = around + ETHERNET + ip + 8;
        ensure!(
            LENGTHS.contains(&wanted.length),
            "--size {}: a frame has {} to {} bytes",
            wanted.length,
            LENGTHS.start(),
            LENGTHS.end()
        );
        ensure!(headers <= wanted.length, "--size {}: the headers alone have {headers} bytes", wanted.length);
        let mut bytes = Vec::with_capacity(wanted.length);
        let ethernet = PacketBuilder::ethernet2(wanted.macs.0, wanted.macs.1);
        let builder = match (wanted.from, wanted.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
            (from, to) => bail!("--from {from} and --to {to} are of different families"),
        };
        builder.udp(0, wanted.to.port()).write(&mut bytes, &vec![7; wanted.length - headers])?;
        if let Some(tunnel) = wanted.tunnel {
            bytes = geneve(tunnel.macs, (tunnel.from, tunnel.to), tunnel.vni, tunnel.keys, &bytes);
        }
        let port_at = around + ETHERNET + ip;
        let checksum_at = port_at + CHECKSUM;
        let field: [u8; 2] = [bytes[checksum_at], bytes[checksum_at + 1]];
        Ok(Self { bytes, port_at, checksum_at, sum: !u16::from_ne_bytes(field) })
    }
}

#[cfg(test)]
mod tests {
    use etherparse::SlicedPacket;

    use super::*;
    use crate::live_frames::{FRONT, front};

    const MACS: Macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

    fn wanted(from: &str, to: &str, length: usize) -> Wanted {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Wanted { macs: MACS, from, to, length, tunnel: None }
    }

    fn tunnel() -> Tunnel {
        Tunnel { macs: MACS, from: [172, 18, 0, 3], to: [172, 18, 0, 2], vni: 7, keys: [0, 3, 0, 5] }
    }

    /// What the program makes of the frame.
    fn with_port(frame: &Frame, port: u16) -> Vec<u8> {
        let mut bytes = frame.bytes.clone();
        bytes[frame.port_at..frame.port_at + 2].copy_from_slice(&port.to_be_bytes());
        let sum = u32::from(frame.sum) + u32::from(port.to_be());
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[frame.checksum_at..frame.checksum_at + 2].copy_from_slice(&sum.to_ne_bytes());
        bytes
    }

    #[test]
    fn every_port_has_the_right_checksum_in_a_tunnel_and_outside_of_both_families() {
        for (wanted, start) in [
            (wanted("10.0.0.9", "10.0.0.1:30080", 64), 0),
            (wanted("fd00::9", "[fd00::1]:30080", 100), 0),
            (Wanted { tunnel: Some(tunnel()), ..wanted("10.244.1.3", "10.244.0.3:8080", 128) }, AROUND),
        ] {
            let frame = Frame::new(&wanted).unwrap();
            assert_eq!(frame.bytes.len(), wanted.length);
            for port in [0, 1, 255, 1_024, 40_000, 65_535] {
                let bytes = with_port(&frame, port);
                let packet = SlicedPacket::from_ethernet(&bytes[start..]).unwrap();
                let Some(etherparse::TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
                assert_eq!(udp.source_port(), port);
                let header = udp.to_header();
                let right = match packet.net.unwrap() {
                    etherparse::NetSlice::Ipv4(ip) => {
                        header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap()
                    }
                    etherparse::NetSlice::Ipv6(ip) => {
                        header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload()).unwrap()
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(udp.checksum(), right, "{wanted:?}, port {port}");
            }
        }
    }

    #[test]
    fn the_front_is_the_frames_and_the_outer_headers_are_ovns() {
        let frame =
            Frame::new(&Wanted { tunnel: Some(tunnel()), ..wanted("10.0.0.9", "10.0.0.1:1", 200) }).unwrap();
        let front: Vec<u8> = front(&frame.bytes).iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(front, frame.bytes[..FRONT]);
        assert_eq!((frame.bytes[36..38].to_vec(), frame.port_at), (6081_u16.to_be_bytes().to_vec(), 92));
    }

    #[test]
    fn what_cannot_be_a_frame_is_refused_by_words() {
        let said = |wanted: &Wanted| Frame::new(wanted).unwrap_err().to_string();
        assert!(said(&wanted("10.0.0.9", "10.0.0.1:1", 59)).contains("60 to 1514"));
        assert!(said(&wanted("10.0.0.9", "[fd00::1]:1", 64)).contains("different families"));
        let short = Wanted { tunnel: Some(tunnel()), ..wanted("10.0.0.9", "10.0.0.1:1", 64) };
        assert!(said(&short).contains("headers alone have 100 bytes"));
    }
}
