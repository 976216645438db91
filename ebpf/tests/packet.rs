//! The parser against packets built by etherparse, the same packets broken in one place, and any bytes at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ebpf::{
    layout::{
        maps::{GENEVE_PORT, mapped},
        reason::Reason,
    },
    packet::wire::{self, Meta},
    packet::{self, MAX_EXTENSION_HEADERS, Packet, Tunnel},
};
use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, PacketBuilder};
use proptest::prelude::*;

const A: [u8; 4] = [172, 18, 0, 2];
const B: [u8; 4] = [172, 18, 0, 3];
const A6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const B6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// OVN's option: class 0x0102, type 0x80, one word.
const OVN_OPTION: [u8; 8] = [0x01, 0x02, 0x80, 0x01, 0, 1, 0, 2];

fn geneve(vni: u32, options: &[u8], inner: &[u8]) -> Vec<u8> {
    let words = u8::try_from(options.len() / 4).unwrap();
    let vni = vni.to_be_bytes();
    let mut bytes = vec![words, 0x40, 0x65, 0x58, vni[1], vni[2], vni[3], 0];
    bytes.extend_from_slice(options);
    bytes.extend_from_slice(inner);
    bytes
}

fn inner_tcp(payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv4([10, 244, 0, 3], [10, 244, 1, 3], 63)
        .tcp(40000, 80, 1, 1000)
        .write(&mut bytes, &vec![7; payload])
        .unwrap();
    bytes
}

fn v4(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC).ipv4(A, B, 64).udp(50000, port).write(&mut bytes, payload).unwrap();
    bytes
}

fn v6(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC).ipv6(A6, B6, 64).udp(50000, port).write(&mut bytes, payload).unwrap();
    bytes
}

fn ovn(vni: u32) -> Vec<u8> {
    geneve(vni, &OVN_OPTION, &inner_tcp(100))
}

/// The tunnel that a packet on the uplink belongs to, if any.
fn uplink<P: Packet>(packet: &P, port: u16, aggregate: bool) -> Result<Option<Tunnel>, Reason> {
    let mut tunnel = Tunnel::default();
    Ok(packet::uplink(packet, port, aggregate, &mut tunnel)?.then_some(tunnel))
}

fn seen(bytes: &[u8]) -> Result<Option<Tunnel>, Reason> {
    uplink(&bytes, GENEVE_PORT, false)
}

fn tunnel(bytes: &[u8]) -> Tunnel {
    match seen(bytes) {
        Ok(Some(tunnel)) => tunnel,
        other => panic!("no tunnel: {other:?}"),
    }
}

#[test]
fn geneve_over_ipv4_gives_both_addresses_the_vni_and_the_inner_frame() {
    let packet = v4(GENEVE_PORT, &ovn(0xab_cdef));
    let expected =
        Tunnel { source: mapped(A), destination: mapped(B), vni: 0xab_cdef, inner: 14 + 20 + 8 + 8 + 8 };
    assert_eq!(tunnel(&packet), expected);
}

#[test]
fn geneve_over_ipv6_gives_both_addresses_the_vni_and_the_inner_frame() {
    let packet = v6(GENEVE_PORT, &ovn(5));
    let expected = Tunnel { source: A6, destination: B6, vni: 5, inner: 14 + 40 + 8 + 8 + 8 };
    assert_eq!(tunnel(&packet), expected);
}

#[test]
fn vlan_tags_in_front_are_skipped() {
    for tags in 1..=2 {
        let mut packet = v4(GENEVE_PORT, &ovn(5));
        for _ in 0..tags {
            packet.splice(12..12, [0x81, 0x00, 0, 9]);
        }
        assert_eq!(tunnel(&packet).inner, 58 + 4 * tags);
        for cut in 12..14 + 4 * usize::try_from(tags).unwrap() {
            assert_eq!(seen(&packet[..cut]), Err(Reason::TruncatedEthernet), "{tags} tags, {cut} bytes");
        }
    }
}

#[test]
fn more_than_two_vlan_tags_are_not_looked_into() {
    let mut packet = v4(GENEVE_PORT, &ovn(5));
    for _ in 0..3 {
        packet.splice(12..12, [0x81, 0x00, 0, 9]);
    }
    assert_eq!(seen(&packet), Ok(None));
}

#[test]
fn other_traffic_of_the_node_is_neither_tunnel_nor_malformed() {
    let mut arp = vec![0xff; 6];
    arp.extend_from_slice(&MAC);
    arp.extend_from_slice(&[0x08, 0x06]);
    arp.extend_from_slice(&[0; 28]);
    let mut icmp = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv4(A, B, 64)
        .icmpv4_echo_request(1, 1)
        .write(&mut icmp, &[0; 8])
        .unwrap();
    for packet in [arp, icmp, inner_tcp(10), v4(53, &[0; 20]), v6(53, &[]), v4(GENEVE_PORT - 1, &ovn(1))] {
        assert_eq!(seen(&packet), Ok(None));
    }
}

#[test]
fn nothing_is_geneve_while_the_port_is_not_configured() {
    let packet = v4(0, &ovn(5));
    assert_eq!(uplink(&packet.as_slice(), 0, false), Ok(None));
}

/// Where the headers of the packet end, and the reason when it ends before that.
fn cut_short(packet: &[u8], limits: &[(usize, Reason)]) {
    let mut from = 0;
    for (to, reason) in limits {
        for cut in from..*to {
            assert_eq!(seen(&packet[..cut]), Err(*reason), "cut at {cut}");
        }
        from = *to;
    }
    assert!(matches!(seen(packet), Ok(Some(_))));
}

#[test]
fn a_packet_cut_at_any_length_is_truncated_where_it_was_cut() {
    // The IP header states the full length, so whatever is missing behind it is missing from IP.
    let packet = v4(GENEVE_PORT, &ovn(5));
    cut_short(&packet, &[(14, Reason::TruncatedEthernet), (packet.len(), Reason::TruncatedIp)]);
    let packet = v6(GENEVE_PORT, &ovn(5));
    cut_short(&packet, &[(14, Reason::TruncatedEthernet), (packet.len(), Reason::TruncatedIp)]);
}

#[test]
fn a_sender_that_states_too_little_is_told_from_a_cut_packet() {
    // IP and UDP lengths agree with what is there: the sender itself left the rest out.
    let full = ovn(5);
    for length in 0..full.len() {
        let reason = match length {
            0..8 => Reason::TruncatedGeneve,
            8..16 => Reason::OptionsBeyondPacket,
            16..30 => Reason::TruncatedInner,
            _ => continue,
        };
        assert_eq!(seen(&v4(GENEVE_PORT, &full[..length])), Err(reason), "IPv4, {length} bytes of payload");
        assert_eq!(seen(&v6(GENEVE_PORT, &full[..length])), Err(reason), "IPv6, {length} bytes of payload");
    }
}

#[test]
fn one_broken_field_gives_its_reason() {
    let base = v4(GENEVE_PORT, &ovn(5));
    let total = u16::from_be_bytes([base[16], base[17]]);
    let cases: Vec<(usize, Vec<u8>, Reason)> = vec![
        (14, vec![0x65], Reason::BadIpVersion),
        (14, vec![0x44], Reason::BadIpHeaderLength),
        (16, vec![0, 19], Reason::BadIpLength),
        (16, (total + 1).to_be_bytes().to_vec(), Reason::TruncatedIp),
        (16, vec![0, 27], Reason::TruncatedUdp),
        (38, vec![0, 7], Reason::BadUdpLength),
        (38, (total - 19).to_be_bytes().to_vec(), Reason::BadUdpLength),
        (38, vec![0, 15], Reason::TruncatedGeneve),
        (42, vec![0x42], Reason::BadGeneveVersion),
        (42, vec![0x3f], Reason::OptionsBeyondPacket),
        (44, vec![0x08, 0x00], Reason::BadProtocolType),
        (53, vec![0x02], Reason::OptionOverrun),
        (20, vec![0x20, 0], Reason::Fragment),
        (20, vec![0, 1], Reason::Fragment),
    ];
    for (at, bytes, reason) in cases {
        let mut packet = base.clone();
        packet[at..at + bytes.len()].copy_from_slice(&bytes);
        assert_eq!(seen(&packet), Err(reason), "{bytes:02x?} at {at}");
    }
    let mut packet = v6(GENEVE_PORT, &ovn(5));
    packet[14] = 0x45;
    assert_eq!(seen(&packet), Err(Reason::BadIpVersion));
}

#[test]
fn options_must_fill_their_space_exactly() {
    let inner = inner_tcp(0);
    let one = |length: u8, body: usize| {
        let mut option = vec![0x01, 0x02, 0x80, length];
        option.extend(vec![0; body]);
        option
    };
    // The largest space there is: 63 empty options, or three of the largest and the rest.
    let many = [0x01, 0x02, 0x80, 0x00].repeat(63);
    assert!(matches!(seen(&v4(GENEVE_PORT, &geneve(1, &many, &inner))), Ok(Some(_))));
    let large = [one(31, 124), one(30, 120)].concat();
    assert!(matches!(seen(&v4(GENEVE_PORT, &geneve(1, &large, &inner))), Ok(Some(_))));
    // The last one reaches one word beyond.
    let overrun = [one(31, 124), one(31, 120)].concat();
    assert_eq!(seen(&v4(GENEVE_PORT, &geneve(1, &overrun, &inner))), Err(Reason::OptionOverrun));
    // The upper three bits of an option's length byte are reserved.
    let reserved = one(0xe1, 4);
    assert!(matches!(seen(&v4(GENEVE_PORT, &geneve(1, &reserved, &inner))), Ok(Some(_))));
}

#[test]
fn ethernet_padding_does_not_make_a_short_packet_longer() {
    let mut packet = v4(GENEVE_PORT, &ovn(5)[..20]);
    packet.resize(packet.len() + 40, 0);
    assert_eq!(seen(&packet), Err(Reason::TruncatedInner));
}

#[test]
fn ip_options_and_extension_headers_are_skipped() {
    let mut header = Ipv4Header::new(0, 64, IpNumber::UDP, A, B).unwrap();
    header.options = [1_u8; 40].into();
    let mut packet = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
        .udp(1, GENEVE_PORT)
        .write(&mut packet, &ovn(5))
        .unwrap();
    assert_eq!(tunnel(&packet).inner, 14 + 60 + 24);

    let udp = v6(GENEVE_PORT, &ovn(5));
    for count in 1..=MAX_EXTENSION_HEADERS + 1 {
        let packet = with_extensions(&udp, count);
        if count <= MAX_EXTENSION_HEADERS {
            assert_eq!(tunnel(&packet).inner, 14 + 40 + 24 + 8 * count);
        } else {
            assert_eq!(seen(&packet), Err(Reason::TooManyExtensionHeaders));
        }
    }
}

/// Puts `count` empty destination options headers behind the IPv6 header.
fn with_extensions(packet: &[u8], count: u32) -> Vec<u8> {
    let mut packet = packet.to_vec();
    for _ in 0..count {
        let next = packet[20];
        packet[20] = 60;
        packet.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    }
    let length = u16::try_from(packet.len() - 54).unwrap().to_be_bytes();
    packet[18..20].copy_from_slice(&length);
    packet
}

#[test]
fn an_ipv6_fragment_is_counted_as_one_but_an_atomic_one_is_a_whole_packet() {
    let udp = v6(GENEVE_PORT, &ovn(5));
    let fragment = |offset: u16, more: bool| {
        let mut header = Vec::new();
        Ipv6FragmentHeader::new(IpNumber::UDP, IpFragOffset::try_new(offset).unwrap(), more, 7)
            .write(&mut header)
            .unwrap();
        let mut packet = udp.clone();
        packet[20] = 44;
        packet.splice(54..54, header);
        let length = u16::try_from(packet.len() - 54).unwrap().to_be_bytes();
        packet[18..20].copy_from_slice(&length);
        packet
    };
    assert_eq!(seen(&fragment(0, true)), Err(Reason::Fragment));
    assert_eq!(seen(&fragment(3, false)), Err(Reason::Fragment));
    assert!(matches!(seen(&fragment(0, false)), Ok(Some(_))));
}

#[test]
fn an_aggregate_whose_length_fields_are_zero_is_read_by_its_own_length() {
    let mut packet = v4(GENEVE_PORT, &ovn(5));
    packet[16..18].copy_from_slice(&[0, 0]);
    packet[38..40].copy_from_slice(&[0, 0]);
    assert_eq!(seen(&packet), Err(Reason::BadIpLength));
    assert!(matches!(uplink(&packet.as_slice(), GENEVE_PORT, true), Ok(Some(_))));
}

#[test]
fn a_pods_packet_is_checked_up_to_ip_only() {
    let tcp = inner_tcp(10);
    assert_eq!(packet::pod(&tcp.as_slice(), false), Ok(()));
    for cut in 0..tcp.len() {
        let reason = if cut < 14 { Reason::TruncatedEthernet } else { Reason::TruncatedIp };
        assert_eq!(packet::pod(&&tcp[..cut], false), Err(reason), "cut at {cut}");
    }
    let broken_geneve = v4(GENEVE_PORT, &[0xff; 20]);
    assert_eq!(packet::pod(&broken_geneve.as_slice(), false), Ok(()));
}

#[test]
fn a_tunnelled_aggregate_counts_the_outer_headers_of_every_segment() {
    let packet = v4(GENEVE_PORT, &geneve(5, &OVN_OPTION, &inner_tcp(3000)));
    let inner = tunnel(&packet).inner;
    let headers = packet::headers(&packet.as_slice(), inner);
    assert_eq!(headers, 58 + 14 + 20 + 20);
    let meta = Meta { gso_size: 1000, vlan_beside: false };
    let amount = wire::amount(u32::try_from(packet.len()).unwrap(), headers, meta);
    assert_eq!((amount.packets, amount.bytes), (3, 3000 + 3 * u64::from(headers)));
}

#[test]
fn tcp_options_belong_to_the_headers_of_every_segment() {
    let mut packet = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv6(A6, B6, 64)
        .tcp(1, 2, 3, 4)
        .options_raw(&[1; 12])
        .unwrap()
        .write(&mut packet, &[0; 500])
        .unwrap();
    assert_eq!(packet::headers(&packet.as_slice(), 0), 14 + 40 + 32);
    let meta = Meta { gso_size: 250, vlan_beside: false };
    let amount = wire::measure(&packet.as_slice(), meta);
    assert_eq!((amount.packets, amount.bytes), (2, 500 + 2 * 86));
}

/// A packet that must not be read outside its bounds: it knows what was asked of it.
struct Guarded<'a>(&'a [u8]);

impl Packet for Guarded<'_> {
    fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap()
    }

    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        // Headers are within the first kilobyte or so: an offset that runs away would show here.
        assert!(offset < 4096, "offset {offset}");
        (&self.0).read(offset)
    }
}

/// A well-formed packet with some bytes changed and a piece cut off.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let base = prop_oneof![
        Just(v4(GENEVE_PORT, &ovn(5))),
        Just(v6(GENEVE_PORT, &ovn(5))),
        Just(with_extensions(&v6(GENEVE_PORT, &ovn(5)), 3)),
        Just(inner_tcp(40)),
    ];
    let changes = prop::collection::vec((0..80_usize, any::<u8>()), 0..6);
    (base, changes, any::<prop::sample::Index>()).prop_map(|(mut packet, changes, cut)| {
        for (at, byte) in changes {
            packet[at] = byte;
        }
        packet.truncate(cut.index(packet.len() + 1));
        packet
    })
}

fn check_any(bytes: &[u8], port: u16, gso_size: u32, vlan_beside: bool) {
    let packet = Guarded(bytes);
    let meta = Meta { gso_size, vlan_beside };
    for aggregate in [false, true] {
        if let Ok(Some(tunnel)) = uplink(&packet, port, aggregate) {
            assert!(tunnel.inner + 14 <= packet.len(), "inner frame at {} of {}", tunnel.inner, packet.len());
            assert!(tunnel.vni < 1 << 24);
            let amount = wire::amount(packet.len(), packet::headers(&packet, tunnel.inner), meta);
            assert!(amount.packets >= 1 && amount.bytes >= u64::from(packet.len()));
        }
        let _ = packet::pod(&packet, aggregate);
    }
    let amount = wire::measure(&packet, meta);
    assert!(amount.packets >= 1 && amount.bytes >= u64::from(packet.len()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_parser_panic_or_read_outside(
        bytes in prop::collection::vec(any::<u8>(), 0..400), port in any::<u16>(), gso in 0..70_000_u32, vlan in any::<bool>()
    ) {
        check_any(&bytes, port, gso, vlan);
    }

    #[test]
    fn no_damage_to_a_real_packet_makes_the_parser_panic_or_read_outside(
        bytes in mutated(), gso in 0..3000_u32, vlan in any::<bool>()
    ) {
        check_any(&bytes, GENEVE_PORT, gso, vlan);
    }

    #[test]
    fn a_well_formed_tunnel_is_read_back_whatever_is_in_it(
        vni in 0..1_u32 << 24, words in prop::collection::vec(0..8_u8, 0..7), payload in 0..200_usize, over6 in any::<bool>()
    ) {
        let options: Vec<u8> = words
            .iter()
            .flat_map(|length| [vec![0, 1, 2, *length], vec![9; usize::from(*length) * 4]].concat())
            .collect();
        let inner = inner_tcp(payload);
        let bytes = geneve(vni, &options, &inner);
        let packet = if over6 { v6(GENEVE_PORT, &bytes) } else { v4(GENEVE_PORT, &bytes) };
        let tunnel = tunnel(&packet);
        prop_assert_eq!(tunnel.vni, vni);
        prop_assert_eq!(&packet[usize::try_from(tunnel.inner).unwrap()..], &inner[..]);
    }
}

proptest! {
    /// A packet is read as far as a tunnel's headers go only if it may be one: what the reader makes anything of must be among those.
    #[test]
    fn what_is_read_as_a_tunnel_packet_may_be_one(
        port in prop_oneof![Just(GENEVE_PORT), any::<u16>()],
        changes in prop::collection::vec((0_usize..110, any::<u8>()), 0..3),
        kept in 0_usize..200,
    ) {
        let mut bytes = v4(port, &ovn(4));
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(kept.max(100));
        let (packet, length) = (bytes.as_slice(), u32::try_from(bytes.len()).unwrap());
        let read = packet::outer(&packet, length, GENEVE_PORT);
        prop_assert!(read == Ok(None) || packet::may_be_outer(&packet, GENEVE_PORT), "{read:?}");
    }
}

#[test]
fn only_datagrams_to_geneves_port_may_be_tunnel_packets() {
    let may = |bytes: &[u8]| packet::may_be_outer(&bytes, GENEVE_PORT);
    assert!(may(&v4(GENEVE_PORT, &ovn(4))));
    assert!(!may(&v4(GENEVE_PORT + 1, &ovn(4))));
    assert!(!may(&inner_tcp(100)));
    assert!(!may(&v6(GENEVE_PORT, &ovn(4))));
    assert!(!may(&v4(GENEVE_PORT, &ovn(4))[..37]));
}
