//! Frames of duplicate address detection: ARP (RFC 5227) and Neighbor Discovery (RFC 4861 and 4862). No I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::MacAddr;
use etherparse::icmpv6::{Icmpv6PayloadSlice, NeighborAdvertisementHeader};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Icmpv6Type, LinkSlice, NetSlice, PacketBuilder,
    SlicedPacket, TransportSlice,
};

/// Hop limit of Neighbor Discovery, by which a message comes from the same link (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
const BROADCAST: MacAddr = MacAddr([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Option of Neighbor Discovery with the sender's link-layer address: type and length in units of 8 bytes (RFC 4861, 4.6.1).
const TARGET_LINK_LAYER: [u8; 2] = [2, 1];

/// Asks who has the address, without saying that the sender has it: an ARP probe (RFC 5227, 2.1.1), or a solicitation from the
/// unspecified address (RFC 4862, 5.4.2).
pub(super) fn probe(mac: MacAddr, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp(mac, Ipv4Addr::UNSPECIFIED, ip),
        IpAddr::V6(ip) => {
            let to = solicited_node(ip);
            discovery(mac, Ipv6Addr::UNSPECIFIED, to, Icmpv6Type::NeighborSolicitation, &ip.octets())
        }
    }
}

/// Says that the sender has the address: an ARP announcement (RFC 5227, 2.3), or an unsolicited advertisement (RFC 4861, 7.2.6).
pub(super) fn announcement(mac: MacAddr, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp(mac, ip, ip),
        IpAddr::V6(ip) => {
            let flags = NeighborAdvertisementHeader { router: false, solicited: false, r#override: true };
            let payload = [&ip.octets()[..], &TARGET_LINK_LAYER, &mac.0].concat();
            discovery(mac, ip, ALL_NODES, Icmpv6Type::NeighborAdvertisement(flags), &payload)
        }
    }
}

/// The one of these addresses that the sender uses, as the frame says, and the sender's MAC address. The frame must be one that came
/// in: hosts of two clusters with one address may have one MAC address, too.
///
/// Probes of others are no use of an address, although RFC 5227 (2.1.1) and RFC 4862 (5.4.3) tell to give way to them: with them
/// a pod could keep others from starting. Port security lets nobody in the cluster say that it has what it has not.
pub(super) fn user_of(frame: &[u8], addresses: &[IpAddr]) -> Option<(IpAddr, MacAddr)> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (address, user) = match (packet.net?, packet.transport) {
        (NetSlice::Arp(arp), _) => {
            let arp = arp.to_packet().try_eth_ipv4().ok()?;
            (IpAddr::V4(arp.sender_ipv4_addr()), MacAddr(arp.sender_mac))
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Icmpv6(icmp))) => {
            let header = ip.header();
            let is_whole = icmp.is_checksum_valid(header.source(), header.destination());
            if header.hop_limit() != HOP_LIMIT || icmp.code_u8() != 0 || !is_whole {
                return None;
            }
            let Ok(Icmpv6PayloadSlice::NeighborAdvertisement(said)) = icmp.payload_slice() else {
                return None;
            };
            let Some(LinkSlice::Ethernet2(ethernet)) = packet.link else { return None };
            (IpAddr::V6(said.target_address()), MacAddr(ethernet.source()))
        }
        _ => return None,
    };
    addresses.contains(&address).then_some((address, user))
}

fn arp(mac: MacAddr, from: Ipv4Addr, about: Ipv4Addr) -> Vec<u8> {
    let (hardware, protocol) = (ArpHardwareId::ETHERNET, EtherType::IPV4);
    let operation = ArpOperation::REQUEST;
    let nobody = [0; 6];
    let packet =
        ArpPacket::new(hardware, protocol, operation, &mac.0, &from.octets(), &nobody, &about.octets());
    let mut frame = Vec::new();
    // Addresses of these lengths fit, and a vector takes everything.
    if let Ok(packet) = packet {
        let _ = PacketBuilder::ethernet2(mac.0, BROADCAST.0).arp(packet).write(&mut frame);
    }
    frame
}

fn discovery(mac: MacAddr, from: Ipv6Addr, to: Ipv6Addr, kind: Icmpv6Type, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder =
        PacketBuilder::ethernet2(mac.0, multicast_mac(to).0).ipv6(from.octets(), to.octets(), HOP_LIMIT);
    // A vector takes everything.
    let _ = builder.icmpv6(kind).write(&mut frame, payload);
    frame
}

/// The multicast address of those that may have the address (RFC 4291, 2.7.1).
fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    let mut octets = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    octets[13..].copy_from_slice(&[a, b, c]);
    Ipv6Addr::from(octets)
}

/// The MAC address of a multicast address (RFC 2464, 7).
fn multicast_mac(ip: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = ip.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: MacAddr = MacAddr([0x0a, 0x58, 0xac, 0x10, 0x5b, 0x4d]);
    const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 1, 2, 3]);

    fn addresses() -> [IpAddr; 2] {
        ["172.16.91.77".parse().unwrap(), "fd00:91::1:2377".parse().unwrap()]
    }

    #[test]
    fn a_probe_asks_everybody_and_claims_nothing() {
        let [four, six] = addresses();
        let frame = probe(OWN, four);
        let (ethernet, rest) = frame.split_at(14);
        assert_eq!(ethernet, [&BROADCAST.0[..], &OWN.0, &[8, 6]].concat());
        let asked = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &OWN.0, &[0; 4], &[0; 6], &[172, 16, 91, 77]].concat();
        assert_eq!(rest, asked);
        let frame = probe(OWN, six);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x01, 0x23, 0x77]);
        let packet = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv6(ip)) = packet.net else { panic!("{frame:?}") };
        assert_eq!(ip.header().source_addr(), Ipv6Addr::UNSPECIFIED);
        assert_eq!(ip.header().destination_addr(), "ff02::1:ff01:2377".parse::<Ipv6Addr>().unwrap());
        // The target, and no option: a solicitation from the unspecified address has none (RFC 4861, 4.3).
        assert_eq!(frame.len(), 14 + 40 + 8 + 16);
        for address in addresses() {
            assert_eq!(user_of(&probe(OTHER, address), &addresses()), None, "{address}");
        }
    }

    #[test]
    fn who_says_that_it_has_an_address_has_it() {
        for address in addresses() {
            let said = announcement(OTHER, address);
            assert_eq!(user_of(&said, &addresses()), Some((address, OTHER)));
            assert_eq!(user_of(&said, &[]), None, "an address of others");
        }
        let [four, _] = addresses();
        let IpAddr::V4(ip) = four else { unreachable!() };
        // The answer to a probe.
        let mut answer = arp(OTHER, ip, Ipv4Addr::UNSPECIFIED);
        answer[21] = 2;
        answer[32..38].copy_from_slice(&OWN.0);
        assert_eq!(user_of(&answer, &addresses()), Some((four, OTHER)));
        // A question of the owner to somebody else.
        let question = arp(OTHER, ip, Ipv4Addr::new(172, 16, 91, 1));
        assert_eq!(user_of(&question, &addresses()), Some((four, OTHER)));
        // A question of somebody else to the owner.
        let question = arp(OTHER, Ipv4Addr::new(172, 16, 91, 1), ip);
        assert_eq!(user_of(&question, &addresses()), None);
    }

    #[test]
    fn an_advertisement_that_did_not_come_from_the_link_or_is_damaged_says_nothing() {
        let [_, six] = addresses();
        let good = announcement(OTHER, six);
        for (at, what) in [(21, "hop limit"), (56, "checksum"), (70, "target")] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(user_of(&bad, &addresses()), None, "{what}");
        }
    }

    proptest! {
        #[test]
        fn no_frame_of_others_panics(mut frame in proptest::collection::vec(any::<u8>(), 0..120), known: bool, at in 0_usize..100) {
            if known {
                let of = announcement(OTHER, addresses()[usize::from(at > 50)]);
                frame.splice(..frame.len().min(at), of.into_iter().take(at));
            }
            let _ = user_of(&frame, &addresses());
        }
    }
}
