//! The flow cache, program by program: what goes in and what comes out, byte by byte. OVS is played by the test: it
//! makes of a packet what OVS would.

mod connections;
mod ended;
mod marks;
mod notes;
mod physical;
mod quoted;
mod scopes;
mod seen;
mod services;
mod sides;
mod sweep;
mod time;
mod translation;
mod world;
mod xdp;
mod xdp_link;
mod xdp_passes;

use std::{net::Ipv4Addr, time::Duration};

use etherparse::PacketBuilder;
use node_agent::{
    bpf::{Reason, Verdict},
    flow_cache::{Action, FlowCache, Underlay},
};
use world::{
    OTHER, OTHER_NODE, POD, Shape, TCP, UDP, UPLINK, World, fix_checksum, is_fast, learn, learn_back,
    unmarked,
};

use crate::packets::{FAR, NEAR, patched};

#[test]
fn the_second_packet_leaves_exactly_as_ovs_sent_the_first() {
    World::both(|world| {
        for (number, shape) in
            [UDP, Shape { six: true, ..UDP }, Shape { ttl: 9, payload: 400, ecn: 1, ..UDP }]
                .into_iter()
                .enumerate()
        {
            world.cache.invalidate().unwrap();
            let (sent, geneve) = shape.out();
            assert_ne!(world.through_ovs(&sent, &geneve).verdict, Verdict::Drop);
            // Another length and ECN than the one that was learned.
            for ecn in [2, 3] {
                let next = Shape { payload: shape.payload + 33, ecn, ..shape };
                let (sent, geneve) = next.out();
                let passed = world.sends(&sent);
                assert_eq!(passed.verdict, Verdict::Redirect, "{number}: {:?}", world.reasons());
                assert_eq!(passed.packet, geneve, "{number}");
            }
        }
    });
}

#[test]
fn the_second_packet_is_delivered_exactly_as_ovs_delivered_the_first() {
    World::both(|world| {
        for shape in [UDP, Shape { six: true, ..UDP }] {
            let (geneve, delivered) = shape.back();
            world.delivered_by_ovs(&geneve, &delivered);
            for ecn in [1, 3] {
                let next = Shape { payload: 77, ecn, ttl: 33, ..shape };
                let (geneve, delivered) = next.back();
                let passed = world.pass("from_uplink", &geneve, world.uplink, 0);
                assert_eq!(passed.verdict, Verdict::Redirect, "{:?}", world.reasons());
                assert_eq!(passed.packet, delivered);
            }
        }
        let flows = world.cache.flows(10).unwrap();
        assert_eq!(flows.len(), 2);
        assert!(
            flows.iter().all(|flow| flow.packets == 2 && flow.endpoint == "a" && flow.valid),
            "{flows:?}"
        );
        let remote = Ipv4Addr::from(FAR);
        assert_eq!(flows[0].action, Action::Deliver { remote, vni: 9, option: 0x0005_0003 });
    });
}

#[test]
fn a_pod_of_the_same_node_gets_what_ovs_gave_it_before() {
    World::both(|world| {
        let frame = |macs: ([u8; 6], [u8; 6]), ttl, payload: usize| {
            let mut bytes = Vec::new();
            PacketBuilder::ethernet2(macs.0, macs.1)
                .ipv4([10, 244, 0, 3], [10, 244, 0, 4], ttl)
                .udp(1, 2)
                .write(&mut bytes, &vec![9; payload])
                .unwrap();
            bytes
        };
        let entered = world.sends(&frame((POD, OTHER), 64, 1));
        world.comes_out("to_pod", &frame((POD, OTHER), 64, 1), world.from_ovs[1], &entered);
        let sent = frame((POD, OTHER), 64, 50);
        let passed = world.sends(&sent);
        assert_eq!((passed.verdict, &passed.packet), (Verdict::Redirect, &sent), "{:?}", world.reasons());
        let amounts = world.cache.endpoints().unwrap();
        assert_eq!((amounts[0].fast_from.packets, amounts[1].fast_to.packets), (1, 1));
        // Above the pods' MTU a packet is for OVS, whatever the sender's own interface lets through.
        assert_eq!(world.sends(&frame((POD, OTHER), 64, 1442 - 28)).verdict, Verdict::Redirect);
        let fast = world.cache.endpoints().unwrap()[0].fast_from.packets;
        world.sends(&frame((POD, OTHER), 64, 1443 - 28));
        assert_eq!(world.count(Reason::TooLong), 1);
        assert_eq!((fast, world.cache.endpoints().unwrap()[0].fast_from.packets), (2, 2));
        // The receiver is taken off: the entry is not used any more.
        world.cache.set_endpoint_fast("b", false).unwrap();
        assert_eq!(world.sends(&sent).packet, sent);
        assert_eq!(world.cache.endpoints().unwrap()[0].fast_from.packets, 2);
    });
}

#[test]
fn a_packet_that_ovs_marked_teaches_nothing() {
    World::both(|world| {
        for six in [false, true] {
            let shape = Shape { six, ..UDP };
            let (sent, geneve) = shape.out();
            // OVN's QoS sets the DSCP of the inner packet: type of service, or traffic class.
            let marked = match six {
                false => {
                    let mut packet = patched(geneve, 58 + 15, &[46 << 2]);
                    fix_checksum(&mut packet[72..92]);
                    packet
                }
                true => patched(geneve, 58 + 14, &[0x6b, 0x80]),
            };
            world.through_ovs(&sent, &marked);
            assert!(!is_fast(&world, shape));
        }
        assert_eq!(world.count(Reason::Learned), 0);
    });
}

#[test]
fn a_new_epoch_makes_every_entry_invalid() {
    World::both(|world| {
        learn(&world, UDP);
        assert!(is_fast(&world, UDP));
        world.cache.invalidate().unwrap();
        assert!(!is_fast(&world, UDP));
        assert_eq!(world.count(Reason::Stale), 1);
    });
}

#[test]
fn a_packet_that_entered_before_a_change_and_leaves_after_it_teaches_nothing() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let entered = world.sends(&sent);
        world.cache.invalidate().unwrap();
        world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &entered);
        assert!(!is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!(world.count(Reason::Learned), 0);
        assert_eq!(world.count(Reason::NoteOldEpoch), 1);
    });
}

#[test]
fn a_younger_packet_does_not_lend_its_epoch_to_one_that_is_still_inside_ovs() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let first = world.sends(&sent);
        world.cache.invalidate().unwrap();
        // The younger one enters in the new epoch, and OVS drops it: what comes out is the older one.
        world.sends(&sent);
        world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &first);
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
        assert!(!is_fast(&world, UDP));
    });
}

#[test]
fn one_verdict_teaches_one_entry() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let entered = world.sends(&sent);
        world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &entered);
        world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &entered);
        // A copy, as to a mirror. Which of them is the answer is not known.
        assert_eq!((world.count(Reason::Learned), world.count(Reason::SeveralOut)), (1, 1));
        assert!(!is_fast(&world, UDP), "{:?}", world.reasons());
    });
}

#[test]
fn tcp_is_fast_when_both_directions_were_seen_and_not_before() {
    World::both(|world| {
        for six in [false, true] {
            let tcp = Shape { six, ..TCP };
            learn(&world, tcp);
            assert!(!is_fast(&world, tcp), "one direction only");
            learn_back(&world, tcp);
            assert!(is_fast(&world, tcp), "{:?}", world.reasons());
        }
    });
}

#[test]
fn syn_and_rst_take_both_directions_out_of_the_cache() {
    World::both(|world| {
        let in_from_wire =
            |shape: Shape| world.pass("from_uplink", &shape.back().0, world.uplink, 0).packet.len();
        for flags in ["S", "SA", "R", "RA"] {
            for from_peer in [false, true] {
                learn(&world, Shape { tcp: Some("S"), ..TCP });
                learn(&world, TCP);
                learn_back(&world, TCP);
                assert!(is_fast(&world, TCP), "{flags} {:?}", world.reasons());
                let end = Shape { tcp: Some(flags), ..TCP };
                if from_peer {
                    assert_eq!(in_from_wire(end), end.back().0.len(), "{flags} itself goes to OVS");
                } else {
                    assert!(!is_fast(&world, end), "{flags} itself goes to OVS");
                }
                assert!(!is_fast(&world, TCP), "{flags}");
                assert_eq!(in_from_wire(TCP), TCP.back().0.len(), "{flags}");
                world.cache.invalidate().unwrap();
                std::thread::sleep(Duration::from_millis(270));
            }
        }
    });
}

#[test]
fn a_pod_cannot_use_another_pods_entry_nor_send_as_somebody_else() {
    World::both(|world| {
        learn(&world, UDP);
        let (sent, geneve) = UDP.out();
        // From the other pod's port, as it is; then with the other pod's own MAC.
        for packet in [sent.clone(), patched(sent.clone(), 6, &OTHER)] {
            let passed = world.pass("from_pod", &packet, world.pods[1], 0);
            assert_eq!(passed.packet, packet);
            // Even if OVS let it through, nothing is learned.
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &passed);
        }
        assert_eq!(world.count(Reason::SourceMismatch), 2);
        assert_eq!((world.count(Reason::Learned), world.cache.flows(10).unwrap().len()), (1, 1));
        // The right address with a wrong MAC.
        let wrong = patched(sent, 6, &OTHER);
        assert_eq!(world.sends(&wrong).packet, wrong);
    });
}

#[test]
fn another_next_hop_than_the_learned_one_is_for_ovs() {
    World::both(|world| {
        learn(&world, UDP);
        let other = patched(UDP.out().0, 0, &OTHER);
        assert_eq!(unmarked(&world.sends(&other).packet), unmarked(&other));
        assert_eq!(world.count(Reason::MacMismatch), 1);
    });
}

#[test]
fn what_ovs_does_with_packets_to_another_next_hop_is_no_divergence() {
    World::both(|world| {
        learn(&world, UDP);
        let (sent, geneve) = UDP.out();
        let sent = patched(sent, 0, &OTHER);
        // Asked for another station, OVS sends it to another node.
        let elsewhere = patched(geneve, 30, &OTHER_NODE);
        world.through_ovs(&sent, &elsewhere);
        assert_eq!(world.count(Reason::Diverged), 0, "{:?}", world.reasons());
        // The entry is for the station that was asked for last.
        assert_eq!(world.sends(&sent).packet[30..34], OTHER_NODE);
        assert!(!is_fast(&world, UDP));
    });
}

#[test]
fn a_packet_that_is_too_long_for_the_underlay_is_for_ovs() {
    World::both(|world| {
        let mac = api::MacAddr(UPLINK);
        let underlay = Underlay { address: Ipv4Addr::from(NEAR), mac, mtu: 1300 };
        world.cache.set_underlay(Some(underlay)).unwrap();
        // Outer IPv4, UDP, Geneve with OVN's option, and the inner Ethernet header; then the pod's IPv4 and UDP.
        let most = 1300 - (20 + 8 + 16 + 14) - 28;
        learn(&world, UDP);
        assert!(is_fast(&world, Shape { payload: most, ..UDP }), "{:?}", world.reasons());
        assert!(!is_fast(&world, Shape { payload: most + 1, ..UDP }));
        assert_eq!(world.count(Reason::TooLong), 1);
    });
}

#[test]
fn a_geneve_packet_from_elsewhere_or_with_another_vni_or_option_does_not_reach_a_pod() {
    World::both(|world| {
        learn_back(&world, UDP);
        let (good, delivered) = UDP.back();
        assert_eq!(world.pass("from_uplink", &good, world.uplink, 0).packet, delivered);
        let with = |at: usize, bytes: &[u8]| {
            let mut packet = patched(good.clone(), at, bytes);
            fix_checksum(&mut packet[14..34]);
            packet
        };
        let table = [
            (with(26, &[172, 18, 0, 9]), Reason::OtherWay, "an unknown outer source"),
            (with(48, &[8]), Reason::OtherWay, "another VNI"),
            (with(54, &[0, 6, 0, 3]), Reason::OtherWay, "another option"),
            (with(50, &[0x01, 0x03]), Reason::OtherOptions, "another option class"),
            (with(43, &[0xc0]), Reason::OtherOptions, "an OAM packet"),
            (with(30, &[172, 18, 0, 9]), Reason::OtherDestination, "another outer destination"),
            (with(0, &[2, 2, 2, 2, 2, 2]), Reason::OtherDestination, "another outer MAC"),
            (with(40, &[1, 1]), Reason::OuterChecksum, "an outer UDP checksum"),
            (patched(good.clone(), 24, &[1, 2]), Reason::OuterHeader, "a wrong outer checksum"),
            (with(15, &[3]), Reason::CongestionMark, "congestion experienced"),
            (with(15, &[1]), Reason::CongestionMark, "another ECN outside than inside"),
            (with(38, &[0, 60]), Reason::OddLength, "a wrong UDP length"),
            (with(58, &OTHER), Reason::MacMismatch, "another inner destination MAC"),
        ];
        for (packet, reason, what) in table {
            let before = world.count(reason);
            let passed = world.pass("from_uplink", &packet, world.uplink, 0);
            assert_eq!(unmarked(&passed.packet), unmarked(&packet), "{what}");
            assert_eq!(world.count(reason), before + 1, "{what}: {:?}", world.reasons());
        }
    });
}

#[test]
fn what_ovs_did_with_one_dscp_is_not_done_with_another_and_is_no_divergence() {
    World::both(|world| {
        let marked = |packet: &[u8], at: usize| {
            let mut packet = patched(packet.to_vec(), at + 1, &[0xb8]);
            fix_checksum(&mut packet[at..at + 20]);
            packet
        };
        learn(&world, UDP);
        learn_back(&world, UDP);
        let (sent, geneve) = UDP.out();
        let (into, delivered) = UDP.back();
        let (ef, ef_in) = (marked(&sent, 14), marked(&into, 72));
        assert_eq!(unmarked(&world.sends(&ef).packet), unmarked(&ef));
        assert_eq!(unmarked(&world.arrives(&ef_in).packet), unmarked(&ef_in));
        assert_eq!(world.count(Reason::DscpMismatch), 2, "{:?}", world.reasons());
        // OVS does otherwise with it, and the entries are for it from then on.
        let elsewhere = patched(marked(&geneve, 72), 30, &OTHER_NODE);
        world.through_ovs(&ef, &elsewhere);
        world.delivered_by_ovs(&ef_in, &patched(marked(&delivered, 14), 6, &OTHER));
        assert_eq!(world.count(Reason::Diverged), 0, "{:?}", world.reasons());
        assert_eq!(world.sends(&ef).packet[30..34], OTHER_NODE);
        assert!(!is_fast(&world, UDP));
    });
}

#[test]
fn what_ovs_does_with_another_inner_mac_is_no_divergence() {
    World::both(|world| {
        learn_back(&world, UDP);
        let (geneve, delivered) = UDP.back();
        let other = (patched(geneve.clone(), 64, &OTHER), patched(delivered, 6, &OTHER));
        // Delivered in another way than before, and then in the same way as the one before.
        for (geneve, delivered) in [other.clone(), (geneve, other.1)] {
            world.delivered_by_ovs(&geneve, &delivered);
            assert_eq!(world.count(Reason::Diverged), 0, "{:?}", world.reasons());
            assert_eq!(world.pass("from_uplink", &geneve, world.uplink, 0).packet, delivered);
        }
    });
}

#[test]
fn what_the_cache_does_not_carry_goes_to_ovs_unchanged_with_its_reason() {
    World::both(|world| {
        learn(&world, UDP);
        learn(&world, TCP);
        learn_back(&world, TCP);
        assert!(is_fast(&world, UDP) && is_fast(&world, TCP));
        let (udp, tcp) = (UDP.out().0, TCP.out().0);
        let with = |packet: &[u8], at: usize, bytes: &[u8]| {
            let mut packet = patched(packet.to_vec(), at, bytes);
            fix_checksum(&mut packet[14..34]);
            packet
        };
        let mut options = udp.clone();
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 0]);
        let mut padded = udp.clone();
        padded.extend([0; 6]);
        let mut tagged = udp.clone();
        tagged.splice(12..12, [0x81, 0x00, 0, 9]);
        let table = [
            (options, Reason::IpOptions),
            (with(&udp, 20, &[0x20, 0]), Reason::IpFragment),
            (with(&udp, 20, &[0, 9]), Reason::IpFragment),
            (with(&udp, 22, &[1]), Reason::LowTtl),
            (with(&udp, 22, &[2]), Reason::LowTtl),
            (with(&udp, 23, &[132]), Reason::OtherProtocol),
            (with(&udp, 23, &[1]), Reason::OtherProtocol),
            (padded, Reason::OddLength),
            (with(&udp, 38, &[0, 9]), Reason::BadUdpLength),
            (with(&tcp, 46, &[0x40]), Reason::BadTcpHeader),
            (with(&tcp, 46, &[0xf0]), Reason::BadTcpHeader),
            (with(&tcp, 47, &[0]), Reason::TcpFlags),
            (with(&udp, 0, &[1, 0, 0x5e, 1, 1, 1]), Reason::Multicast),
            (Shape { payload: 1415, ..UDP }.out().0, Reason::TooLong),
        ];
        for (packet, reason) in table {
            let before = world.count(reason);
            let passed = world.sends(&packet);
            assert_eq!(passed.packet, packet, "{reason:?}");
            assert_eq!(world.count(reason), before + 1, "{reason:?}: {:?}", world.reasons());
        }
        assert_eq!(world.sends(&tagged).packet, tagged);
        // One byte less fits: 1414 of payload, 42 of headers without Ethernet's, 58 around.
        assert!(is_fast(&world, Shape { payload: 1414, ..UDP }));
        // A UDP packet of one byte is no short TCP packet.
        assert!(is_fast(&world, Shape { payload: 1, ..UDP }));
        assert!(is_fast(&world, Shape { payload: 0, ..UDP }));
    });
}

#[test]
fn ipv6_with_extension_headers_goes_to_ovs() {
    World::both(|world| {
        let six = Shape { six: true, ..UDP };
        learn(&world, six);
        assert!(is_fast(&world, six));
        for (next, reason) in [(0, Reason::IpOptions), (44, Reason::IpFragment), (60, Reason::IpOptions)] {
            let packet = patched(six.out().0, 20, &[next]);
            assert_eq!(world.sends(&packet).packet, packet);
            assert_eq!(world.count(reason), if next == 60 { 2 } else { 1 });
        }
    });
}
