//! Reading frames as they come: what a server answers to, and what the fast path must give back.

use std::net::IpAddr;

use super::super::frame::{Packet, TCP, UDP, Upper};
use super::super::tunnel::GENEVE_PORT;

/// Bytes in front of the inner IP packet of a tunnel: Ethernet, IPv4, UDP, Geneve, OVN's option, inner Ethernet.
const TUNNEL: usize = 14 + 20 + 8 + 8 + 8 + 14;
/// Where the outer UDP header begins.
const OUTER_UDP: usize = 14 + 20;

/// Whether it is a tunnel packet as OVN sends them.
pub(in crate::flow_cache_equivalence) fn is_tunnelled(frame: &[u8]) -> bool {
    frame.len() > TUNNEL
        && half(frame, 12) == Some(0x0800)
        && frame.get(14) == Some(&0x45)
        && frame.get(23) == Some(&UDP)
        && half(frame, OUTER_UDP + 2) == Some(GENEVE_PORT)
}

/// The frame without what OVS is free to choose anew at any time: the outer UDP source port of a tunnel.
pub(in crate::flow_cache_equivalence) fn comparable(mut frame: Vec<u8>) -> Vec<u8> {
    if is_tunnelled(&frame) {
        frame[OUTER_UDP..OUTER_UDP + 2].fill(0);
    }
    frame
}

/// The IP packet of a frame, the inner one of a tunnel.
pub(in crate::flow_cache_equivalence) fn ip(frame: &[u8]) -> Option<&[u8]> {
    frame.get(if is_tunnelled(frame) { TUNNEL } else { 14 }..)
}

/// What a packet's sender may set as it likes, and which carries the fast path's numbers inside OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::flow_cache_equivalence) enum Word {
    /// Identification of IPv4, and the flags.
    V4 { id: u16, flags: u8 },
    /// Flow label of IPv6.
    V6 { label: u32 },
}

impl Word {
    /// Of an IP packet.
    pub(in crate::flow_cache_equivalence) fn of(ip: &[u8]) -> Option<Self> {
        match ip.first()? >> 4 {
            4 => Some(Self::V4 { id: half(ip, 4)?, flags: *ip.get(6)? >> 5 }),
            6 => Some(Self::V6 { label: u32::from(*ip.get(1)? & 0xf) << 16 | u32::from(half(ip, 2)?) }),
            _ => None,
        }
    }

    /// Of a packet as it is sent.
    pub(in crate::flow_cache_equivalence) fn sent(packet: &Packet) -> Option<Self> {
        Self::of(&packet.ip())
    }
}

/// The packet that answers TCP or UDP: everything turned round.
pub(in crate::flow_cache_equivalence) fn answer(frame: &[u8]) -> Option<Packet> {
    let mac = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<6>().copied());
    let ip = frame.get(14..)?;
    let (source, destination, protocol, upper): (IpAddr, IpAddr, u8, &[u8]) = match ip.first()? >> 4 {
        4 => {
            let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
            let header = usize::from(ip.first()? & 0xf) * 4;
            (address(12)?, address(16)?, *ip.get(9)?, ip.get(header..)?)
        }
        6 => {
            let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
            (address(8)?, address(24)?, *ip.get(6)?, ip.get(40..)?)
        }
        _ => return None,
    };
    let ports = [half(upper, 2)?, half(upper, 0)?];
    let upper = match protocol {
        UDP => Upper::Udp,
        TCP => super::super::cases::tcp(super::super::frame::ACK),
        _ => return None,
    };
    // Destination and source MAC of the answer are source and destination of what is answered.
    Some(Packet::new([mac(6)?, mac(0)?], destination, source, ports, upper))
}

/// A number of two bytes.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::super::super::tunnel::{geneve, on_wire};
    use super::*;

    fn packet(six: bool) -> Packet {
        let ip = |last: u8| -> IpAddr {
            if six { format!("fd00::{last}").parse().unwrap() } else { IpAddr::from([10, 0, 0, last]) }
        };
        let mut packet = Packet::new([[2; 6], [4; 6]], ip(1), ip(2), [1000, 2000], Upper::Udp);
        (packet.id, packet.label, packet.reserved) = (0x1234, Some(0xf_c001), !six);
        packet
    }

    #[test]
    fn an_answer_is_the_packet_turned_round() {
        for six in [false, true] {
            let (asked, frame) = (packet(six), packet(six).frame());
            let answer = answer(&frame.bytes).unwrap();
            assert_eq!(answer.macs, [[4; 6], [2; 6]]);
            assert_eq!((answer.source, answer.destination), (asked.destination, asked.source));
            assert_eq!((answer.ports, answer.upper), ([2000, 1000], Upper::Udp));
        }
        assert!(answer(&[0; 60]).is_none());
    }

    #[test]
    fn what_the_sender_set_is_read_also_inside_a_tunnel_whose_source_port_does_not_count() {
        for (six, word) in
            [(false, Word::V4 { id: 0x1234, flags: 0b110 }), (true, Word::V6 { label: 0xf_c001 })]
        {
            let frame = packet(six).frame().bytes;
            let wire = on_wire(&geneve((5, 6), &frame)).unwrap();
            assert!(is_tunnelled(&wire) && !is_tunnelled(&frame));
            for frame in [&frame, &wire] {
                assert_eq!(Word::of(ip(frame).unwrap()), Some(word));
            }
            assert_eq!(Word::sent(&packet(six)), Some(word));
            let mut other = wire.clone();
            other[OUTER_UDP] ^= 1;
            assert_eq!(comparable(other), comparable(wire.clone()));
            let mut other = wire.clone();
            *other.last_mut().unwrap() ^= 1;
            assert_ne!(comparable(other), comparable(wire));
            assert_eq!(comparable(frame.clone()), frame);
        }
    }
}
