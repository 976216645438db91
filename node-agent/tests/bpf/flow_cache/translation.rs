//! Translation: OVS gives a packet other addresses or ports, and the cache repeats it with right checksums.

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use node_agent::{bpf::Reason, flow_cache::FlowCache};

use super::world::{
    FAR_POD, FAR_ROUTER, FAR_UPLINK, OTHER, POD, ROUTER, SIX_FAR, SIX_NEAR, UPLINK, World, geneve,
};
use crate::packets::{FAR, NEAR};

/// A cluster IP of each family.
pub(super) const VIP: [u8; 4] = [10, 96, 0, 10];
pub(super) const VIP6: [u8; 16] = [0xfd, 0, 0, 0x10, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const POD4: [u8; 4] = [10, 244, 0, 3];
pub(super) const OTHER4: [u8; 4] = [10, 244, 0, 4];
pub(super) const FAR4: [u8; 4] = [10, 244, 1, 3];

/// A packet, from its addresses: of IPv4, or of IPv6 where `six` has them.
#[derive(Clone, Copy)]
pub(super) struct Packet {
    pub(super) macs: ([u8; 6], [u8; 6]),
    pub(super) four: ([u8; 4], [u8; 4]),
    pub(super) six: Option<([u8; 16], [u8; 16])>,
    pub(super) ports: (u16, u16),
    pub(super) ttl: u8,
    pub(super) tcp: bool,
    pub(super) payload: usize,
}

impl Packet {
    pub(super) fn bytes(self) -> Vec<u8> {
        let payload: Vec<u8> = (0..self.payload).map(|n| u8::try_from(n % 249).unwrap()).collect();
        let ethernet = PacketBuilder::ethernet2(self.macs.0, self.macs.1);
        let ip = match self.six {
            Some((from, to)) => ethernet.ipv6(from, to, self.ttl),
            None => ethernet.ipv4(self.four.0, self.four.1, self.ttl),
        };
        let mut bytes = Vec::new();
        if self.tcp {
            ip.tcp(self.ports.0, self.ports.1, 77, 1000).ack(7).write(&mut bytes, &payload).unwrap();
        } else {
            ip.udp(self.ports.0, self.ports.1).write(&mut bytes, &payload).unwrap();
        }
        bytes
    }
}

/// The four packets of a connection to a service: from the client before and after OVS, and back.
pub(super) struct Service {
    pub(super) asked: Packet,
    pub(super) asked_after: Packet,
    pub(super) answered: Packet,
    pub(super) answered_after: Packet,
}

pub(super) fn service(six: bool, tcp: bool, backend: ([u8; 4], [u8; 16]), far: bool) -> Service {
    let pair = |a: ([u8; 4], [u8; 16]), b: ([u8; 4], [u8; 16])| ((a.0, b.0), six.then_some((a.1, b.1)));
    let (client, vip) = ((POD4, SIX_NEAR), (VIP, VIP6));
    let packet = |macs, (four, six), ports, ttl| Packet { macs, four, six, ports, ttl, tcp, payload: 30 };
    let (near, beyond) = if far { ((FAR_ROUTER, FAR_POD), 63) } else { ((ROUTER, OTHER), 63) };
    Service {
        asked: packet((POD, ROUTER), pair(client, vip), (40_000, 80), 64),
        asked_after: packet(near, pair(client, backend), (40_000, 8_080), beyond),
        answered: packet(
            if far { (ROUTER, POD) } else { (OTHER, ROUTER) },
            pair(backend, client),
            (8_080, 40_000),
            64,
        ),
        answered_after: packet((ROUTER, POD), pair(vip, client), (80, 40_000), if far { 64 } else { 63 }),
    }
}

/// Sums of IPv4, TCP and UDP are right.
pub(super) fn assert_sums(packet: &[u8], what: &str) {
    let sliced = SlicedPacket::from_ethernet(packet).unwrap();
    let net = sliced.net.unwrap();
    let (calculated, found) = match (&net, sliced.transport.unwrap()) {
        (etherparse::NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            assert_eq!(
                ip.header().header_checksum(),
                ip.header().to_header().calc_header_checksum(),
                "{what}"
            );
            let header = ip.header().to_header();
            (udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap(), udp.checksum())
        }
        (etherparse::NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            assert_eq!(
                ip.header().header_checksum(),
                ip.header().to_header().calc_header_checksum(),
                "{what}"
            );
            let header = ip.header().to_header();
            (tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap(), tcp.checksum())
        }
        (etherparse::NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
            let header = ip.header().to_header();
            (udp.to_header().calc_checksum_ipv6(&header, udp.payload()).unwrap(), udp.checksum())
        }
        (etherparse::NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header().to_header();
            (tcp.to_header().calc_checksum_ipv6(&header, tcp.payload()).unwrap(), tcp.checksum())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(found, calculated, "{what}");
}

#[test]
fn a_service_with_its_backend_on_another_node_is_repeated_byte_for_byte() {
    World::both(|world| {
        for (six, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("IPv6 {six}, TCP {tcp}");
            let service = service(six, tcp, (FAR4, SIX_FAR), true);
            let out =
                |packet: Packet| geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, &packet.bytes());
            let back =
                |packet: Packet| geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, &packet.bytes());
            world.through_ovs(&service.asked.bytes(), &out(service.asked_after));
            world.delivered_by_ovs(&back(service.answered), &service.answered_after.bytes());
            for payload in [0, 1, 600] {
                let of = |packet: Packet| Packet { payload, ..packet };
                let asked = world.sends(&of(service.asked).bytes());
                assert_eq!(asked.packet, out(of(service.asked_after)), "{what}: {:?}", world.reasons());
                assert_sums(&asked.packet[58..], &what);
                let answered = world.arrives(&back(of(service.answered)));
                assert_eq!(
                    answered.packet,
                    of(service.answered_after).bytes(),
                    "{what}: {:?}",
                    world.reasons()
                );
                assert_sums(&answered.packet, &what);
            }
        }
        let flows = world.cache.flows(20).unwrap();
        assert_eq!(flows.len(), 8);
        assert!(flows.iter().all(|flow| flow.valid && flow.translated.is_some()), "{flows:?}");
    });
}

#[test]
fn a_service_with_its_backend_on_this_node_too() {
    World::both(|world| {
        for (six, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("IPv6 {six}, TCP {tcp}");
            let mut backend = SIX_NEAR;
            backend[15] = 4;
            let service = service(six, tcp, (OTHER4, backend), false);
            let ask = |packet: Packet| world.pass("from_pod", &packet.bytes(), world.pods[0], 0);
            let answer = |packet: Packet| world.pass("from_pod", &packet.bytes(), world.pods[1], 0);
            world.comes_out("to_pod", &service.asked_after.bytes(), world.from_ovs[1], &ask(service.asked));
            world.comes_out(
                "to_pod",
                &service.answered_after.bytes(),
                world.from_ovs[0],
                &answer(service.answered),
            );
            for payload in [0, 1, 600] {
                let of = |packet: Packet| Packet { payload, ..packet };
                let asked = ask(of(service.asked));
                assert_eq!(asked.packet, of(service.asked_after).bytes(), "{what}: {:?}", world.reasons());
                assert_sums(&asked.packet, &what);
                let answered = answer(of(service.answered));
                assert_eq!(
                    answered.packet,
                    of(service.answered_after).bytes(),
                    "{what}: {:?}",
                    world.reasons()
                );
            }
        }
    });
}

#[test]
fn a_udp_packet_without_a_checksum_keeps_none() {
    World::both(|world| {
        let service = service(false, false, (FAR4, SIX_FAR), true);
        let out = |packet: Packet| geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, &packet.bytes());
        world.through_ovs(&service.asked.bytes(), &out(service.asked_after));
        let without = crate::packets::patched(service.asked.bytes(), 40, &[0, 0]);
        let passed = world.sends(&without);
        assert_eq!(passed.packet[58 + 40..58 + 42], [0, 0], "{:?}", world.reasons());
    });
}

#[test]
fn what_ovs_gives_back_to_its_sender_is_not_learned() {
    World::both(|world| {
        let ask = Packet {
            macs: (POD, ROUTER),
            four: (POD4, VIP),
            six: None,
            ports: (40_000, 80),
            ttl: 64,
            tcp: false,
            payload: 8,
        };
        // Through a service to the pod itself: OVS puts another source in its place.
        let hairpin = Packet {
            macs: (ROUTER, POD),
            four: ([169, 254, 0, 5], POD4),
            ports: (40_000, 8_080),
            ttl: 63,
            ..ask
        };
        let entered = world.sends(&ask.bytes());
        world.comes_out("to_pod", &hairpin.bytes(), world.from_ovs[0], &entered);
        // As OVN answers a name server's query: the same packet turned round.
        let answer = Packet { macs: (ROUTER, POD), four: (VIP, POD4), ports: (80, 40_000), ttl: 63, ..ask };
        let entered = world.sends(&ask.bytes());
        world.comes_out("to_pod", &answer.bytes(), world.from_ovs[0], &entered);
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
    });
}

#[test]
fn a_packet_that_ovs_held_back_teaches_nothing_when_its_slot_has_another_note() {
    World::run(false, |world| {
        let service = service(false, false, (FAR4, SIX_FAR), true);
        let out = |packet: Packet| geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, &packet.bytes());
        let entered = world.sends(&service.asked.bytes());
        // Another payload: another packet of the flow, with the number of the first.
        let other = Packet { payload: 31, ..service.asked_after };
        world.comes_out("to_uplink", &out(other), world.uplink_from_ovs, &entered);
        assert_eq!(
            (world.count(Reason::Learned), world.count(Reason::OtherPacket)),
            (0, 1),
            "{:?}",
            world.reasons()
        );
    });
}

#[test]
fn a_mark_that_a_pod_or_a_node_makes_up_is_taken_off() {
    World::run(true, |world| {
        let mut packet = Packet {
            macs: (POD, ROUTER),
            four: (POD4, FAR4),
            six: None,
            ports: (1, 2),
            ttl: 64,
            tcp: false,
            payload: 8,
        }
        .bytes();
        // Not for the cache, by its protocol.
        packet[23] = 47;
        packet[18..22].copy_from_slice(&[0, 7, 0x80, 0]);
        super::world::fix_checksum(&mut packet[14..34]);
        let mut clean = packet.clone();
        clean[20] = 0;
        super::world::fix_checksum(&mut clean[14..34]);
        assert_eq!(world.sends(&packet).packet, clean, "{:?}", world.reasons());
        let tunnelled = |inner: &[u8]| geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, inner);
        assert_eq!(world.arrives(&tunnelled(&packet)).packet, tunnelled(&clean));
        assert_eq!(world.count(Reason::ForeignMark), 2);
        // And one that comes out of OVS without a note.
        assert_eq!(world.pass("to_pod", &packet, world.from_ovs[0], 0).packet, clean);
        assert_eq!(world.count(Reason::StrayMark), 1, "{:?}", world.reasons());
    });
}
