//! What OVN's ICMP errors quote: the packet as it was inside OVS, with the number of its note. Who gets the error finds in it what the
//! sender wrote.

use etherparse::PacketBuilder;
use node_agent::bpf::Reason;

use super::world::{FAR_UPLINK, POD, ROUTER, SIX_FAR, SIX_NEAR, Shape, TCP, UDP, UPLINK, World, geneve};
use crate::packets::{FAR, NEAR};

/// An error of the pod's router about a packet that begins with an IP header.
fn error(about: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ethernet = PacketBuilder::ethernet2(ROUTER, POD);
    if about[0] >> 4 == 6 {
        let icmp = ethernet.ipv6(SIX_FAR, SIX_NEAR, 255).icmpv6_raw(1, 4, [0; 4]);
        icmp.write(&mut bytes, about).unwrap();
    } else {
        let icmp = ethernet.ipv4([10, 244, 0, 1], [10, 244, 0, 3], 255).icmpv4_raw(3, 3, [0; 4]);
        icmp.write(&mut bytes, about).unwrap();
    }
    bytes
}

const SHAPES: [Shape; 4] = [UDP, TCP, Shape { six: true, ..UDP }, Shape { six: true, ..TCP }];

#[test]
fn an_error_quotes_what_the_sender_wrote_wherever_it_leaves_ovs() {
    World::run(true, |world| {
        for shape in SHAPES {
            let (sent, _) = shape.out();
            let entered = world.sends(&sent);
            assert_ne!(entered.packet, sent, "it has a number: {:?}", world.reasons());
            let (marked, right) = (error(&entered.packet[14..]), error(&sent[14..]));
            for (program, port) in [("to_pod", world.from_ovs[0]), ("to_host", world.node[0])] {
                assert_eq!(world.pass(program, &marked, port, 0).packet, right, "{program}");
            }
            let tunnelled = |inner: &[u8]| geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, inner);
            let passed = world.pass("to_uplink", &tunnelled(&marked), world.uplink_from_ovs, 0);
            assert_eq!(passed.packet, tunnelled(&right));
            let passed = world.pass("to_uplink", &marked, world.uplink_from_ovs, 0);
            assert_eq!(passed.packet, right);
            // As much as OVN has to quote (RFC 792), and no more.
            let least = if shape.six { 48 } else { 28 };
            let cut = |packet: &[u8]| error(&packet[14..14 + least]);
            let passed = world.pass("to_pod", &cut(&entered.packet), world.from_ovs[0], 0);
            assert_eq!(passed.packet, cut(&sent));
        }
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
    });
}

#[test]
fn what_an_error_of_others_quotes_stays_as_it_is() {
    World::run(true, |world| {
        for shape in SHAPES {
            let (sent, _) = shape.out();
            let entered = world.sends(&sent);
            // Of another flow, with the number of this one; both ends differ.
            let (source, destination) = if shape.six { (22 + 15, 38 + 15) } else { (26 + 3, 30 + 3) };
            let mut other = entered.packet.clone();
            other[source] ^= 0x40;
            other[destination] ^= 0x40;
            let quoted = error(&other[14..]);
            assert_eq!(world.pass("to_pod", &quoted, world.from_ovs[0], 0).packet, quoted);
            // Of this one, without a number.
            let quoted = error(&sent[14..]);
            assert_eq!(world.pass("to_pod", &quoted, world.from_ovs[0], 0).packet, quoted);
            // No error.
            let mut echo = error(&entered.packet[14..]);
            echo[14 + if shape.six { 40 } else { 20 }] = if shape.six { 129 } else { 0 };
            assert_eq!(world.pass("to_pod", &echo, world.from_ovs[0], 0).packet, echo);
        }
    });
}
