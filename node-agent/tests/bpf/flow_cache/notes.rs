//! Notes, where several packets of one flow are inside OVS at a time: none is credited with what another did.

use std::time::Duration;

use etherparse::PacketBuilder;
use node_agent::{
    bpf::Reason,
    flow_cache::{FlowCache, Gate, Timing},
};

use crate::packets::{FAR, NEAR, patched};

use super::world::{
    FAR_UPLINK, OPEN, OTHER, OTHER_NODE, POD, STRANGER, Shape, TCP, UDP, UPLINK, World, from_node, geneve,
    is_fast, learn, learn_back, outer,
};

/// Whether a packet from the wire leaves the program without its outer headers.
fn reaches_a_pod(world: &World, packet: &[u8]) -> bool {
    world.arrives(packet).packet.len() < packet.len()
}

#[test]
fn a_packet_from_another_outer_source_does_not_get_the_entry_of_the_right_one() {
    World::both(|world| {
        let shapes = [UDP, TCP, Shape { six: true, ..UDP }];
        for (shape, source) in shapes.into_iter().flat_map(|s| [(s, STRANGER), (s, OTHER_NODE)]) {
            world.cache.invalidate().unwrap();
            let (right, delivered) = shape.back();
            let forged = from_node(&right, source);
            for order in [[&forged, &right], [&right, &forged]] {
                let entered = order.map(|packet| world.arrives(packet));
                let tag = &entered[usize::from(order[1] == &right)];
                // OVS drops the other one.
                world.comes_out("to_pod", &delivered, world.from_ovs[0], tag);
                assert!(!reaches_a_pod(&world, &forged), "{:?}", world.reasons());
            }
        }
    });
}

#[test]
fn what_a_stranger_sent_is_not_credited_to_a_right_packet_that_left_no_note() {
    World::both(|world| {
        for shape in [UDP, TCP, Shape { six: true, ..UDP }] {
            let (right, delivered) = shape.back();
            let forged = from_node(&right, STRANGER);
            assert!(!reaches_a_pod(&world, &forged));
            // OVS drops that one. A right one comes out, which left no note.
            world.pass("to_pod", &delivered, world.from_ovs[0], 0);
            assert!(!reaches_a_pod(&world, &forged), "{:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
        assert_eq!(world.count(Reason::UnknownRemote), 6, "{:?}", world.reasons());
        // It did not get in the right ones' way.
        learn_back(&world, UDP);
        assert!(reaches_a_pod(&world, &UDP.back().0), "{:?}", world.reasons());
    });
}

#[test]
fn what_a_pod_sends_like_a_tunnel_packet_teaches_nothing_and_makes_nobody_diverge() {
    World::both(|world| {
        for shape in [UDP, Shape { six: true, ..UDP }] {
            let (sent, right) = shape.out();
            // Translated to this node's address on its way to the outside, with the flow of another pod in it.
            let forged = outer(&right, 30, &STRANGER);
            let mut summed = right.clone();
            summed[40..42].copy_from_slice(&[0x12, 0x34]);
            for packet in [&forged, &summed] {
                let tag = world.sends(&sent);
                world.comes_out("to_uplink", packet, world.uplink_from_ovs, &tag);
                assert!(!is_fast(&world, shape), "{:?}", world.reasons());
            }
        }
        assert_eq!((world.count(Reason::Learned), world.count(Reason::ForeignTunnel)), (0, 4));
        // Nor while OVS is asked again.
        world.cache.invalidate().unwrap();
        let timing = Timing { refresh: Duration::ZERO, ..Timing::default() };
        world.cache.set_timing(timing).unwrap();
        learn(&world, UDP);
        assert_eq!(world.count(Reason::Learned), 1, "{:?}", world.reasons());
        let (sent, right) = UDP.out();
        let tag = world.sends(&sent);
        world.comes_out("to_uplink", &outer(&right, 30, &STRANGER), world.uplink_from_ovs, &tag);
        assert_eq!(world.count(Reason::Diverged), 0, "{:?}", world.reasons());
    });
}

#[test]
fn nodes_are_learned_from_as_long_as_ovs_has_a_tunnel_to_them() {
    World::both(|world| {
        let (right, delivered) = UDP.back();
        let moved = from_node(&right, OTHER_NODE);
        let learns = |packet: &[u8]| {
            world.cache.invalidate().unwrap();
            world.delivered_by_ovs(packet, &delivered);
            reaches_a_pod(&world, packet)
        };
        assert!(learns(&right) && learns(&moved), "{:?}", world.reasons());
        world.cache.set_remotes(&[FAR.into()].into()).unwrap();
        assert!(learns(&right) && !learns(&moved), "{:?}", world.reasons());
        world.cache.set_remotes(&[OTHER_NODE.into()].into()).unwrap();
        assert!(!learns(&right) && learns(&moved), "{:?}", world.reasons());
        world.cache.set_remotes(&[].into()).unwrap();
        assert!(!learns(&right) && !learns(&moved), "{:?}", world.reasons());
    });
}

#[test]
fn what_came_while_nothing_was_learned_is_not_credited_to_a_packet_that_came_by_another_way_later() {
    World::both(|world| {
        let (right, delivered) = UDP.back();
        let others = [
            from_node(&right, OTHER_NODE),
            outer(&right, 48, &[8]),
            outer(&right, 54, &[0, 6, 0, 3]),
            outer(&right, 64, &OTHER),
        ];
        for other in &others {
            world.cache.set_gate(Gate { learn: false, ..OPEN }).unwrap();
            let early = world.arrives(other);
            world.cache.invalidate().unwrap();
            world.cache.set_gate(OPEN).unwrap();
            world.arrives(&right);
            // OVS drops that one, and the early one is late.
            world.comes_out("to_pod", &delivered, world.from_ovs[0], &early);
            assert!(!reaches_a_pod(&world, &right), "{:?}", world.reasons());
            world.cache.invalidate().unwrap();
        }
        // It does not keep its own way from being learned when learning goes on.
        world.cache.set_gate(Gate { learn: false, ..OPEN }).unwrap();
        world.arrives(&right);
        world.cache.invalidate().unwrap();
        world.cache.set_gate(OPEN).unwrap();
        world.delivered_by_ovs(&right, &delivered);
        assert!(reaches_a_pod(&world, &right), "{:?}", world.reasons());
    });
}

#[test]
fn when_the_first_of_several_packets_taught_before_a_change_those_that_come_out_after_it_do_not() {
    World::both(|world| {
        for shape in [UDP, Shape { six: true, ..UDP }] {
            let (sent, geneve) = shape.out();
            let entered = [(); 2].map(|()| world.sends(&sent));
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &entered[0]);
            assert!(is_fast(&world, shape), "{:?}", world.reasons());
            world.cache.invalidate().unwrap();
            // OVS drops what enters from now on.
            assert!(!is_fast(&world, shape));
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &entered[1]);
            assert!(!is_fast(&world, shape), "{:?}", world.reasons());

            let (right, delivered) = shape.back();
            let entered = [(); 2].map(|()| world.arrives(&right));
            world.comes_out("to_pod", &delivered, world.from_ovs[0], &entered[0]);
            assert!(reaches_a_pod(&world, &right), "{:?}", world.reasons());
            world.cache.invalidate().unwrap();
            assert!(!reaches_a_pod(&world, &right));
            world.comes_out("to_pod", &delivered, world.from_ovs[0], &entered[1]);
            assert!(!reaches_a_pod(&world, &right), "{:?}", world.reasons());

            learn(&world, shape);
            learn_back(&world, shape);
            assert!(is_fast(&world, shape) && reaches_a_pod(&world, &right), "{:?}", world.reasons());
            world.cache.invalidate().unwrap();
        }
    });
}

#[test]
fn a_packet_to_another_mac_does_not_get_the_entry_of_the_right_one() {
    World::both(|world| {
        let (right, delivered) = UDP.back();
        let (sent, geneve) = UDP.out();
        for order in [[0, 1], [1, 0]] {
            let packets = [right.clone(), outer(&right, 58, &OTHER)];
            let entered = order.map(|at: usize| world.arrives(&packets[at]));
            // OVS drops the other one.
            world.comes_out("to_pod", &delivered, world.from_ovs[0], &entered[order[0]]);
            assert!(!reaches_a_pod(&world, &packets[1]), "{:?}", world.reasons());
            let packets = [sent.clone(), patched(sent.clone(), 0, &OTHER)];
            let entered = order.map(|at: usize| world.sends(&packets[at]));
            world.comes_out("to_uplink", &geneve, world.uplink, &entered[order[0]]);
            assert_eq!(world.sends(&packets[1]).packet.len(), packets[1].len(), "{:?}", world.reasons());
            world.cache.invalidate().unwrap();
        }
    });
}

/// The packet in the forms that are not for the cache: with an outer UDP checksum, and with a mark of congestion.
fn unfit(packet: &[u8]) -> [Vec<u8>; 2] {
    [outer(packet, 40, &[1, 1]), outer(packet, 15, &[3])]
}

#[test]
fn a_right_packet_that_is_not_for_the_cache_is_not_taken_for_one_of_another_network_or_node() {
    World::both(|world| {
        let (right, delivered) = UDP.back();
        let others =
            [from_node(&right, OTHER_NODE), outer(&right, 48, &[8]), outer(&right, 54, &[0, 6, 0, 3])];
        for (other, right) in others.iter().flat_map(|other| unfit(&right).map(|right| (other, right))) {
            for order in [[other, &right], [&right, other]] {
                let entered = order.map(|packet| world.arrives(packet));
                // OVS drops the other one.
                let tag = &entered[usize::from(*order[1] == right)];
                world.comes_out("to_pod", &delivered, world.from_ovs[0], tag);
                assert!(!reaches_a_pod(&world, other), "{:?}", world.reasons());
                world.cache.invalidate().unwrap();
            }
        }
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
    });
}

#[test]
fn packets_of_a_flow_that_are_not_for_the_cache_do_not_keep_others_of_it_from_being_learned() {
    World::both(|world| {
        let (right, delivered) = UDP.back();
        for unfit in unfit(&right) {
            world.cache.invalidate().unwrap();
            for first in [&unfit, &unfit] {
                let tag = &world.arrives(first);
                world.comes_out("to_pod", &delivered, world.from_ovs[0], tag);
                assert_eq!(world.cache.flows(10).unwrap().iter().filter(|flow| flow.valid).count(), 0);
            }
            let tag = &world.arrives(&right);
            world.arrives(&unfit);
            world.comes_out("to_pod", &delivered, world.from_ovs[0], tag);
            assert!(reaches_a_pod(&world, &right), "{:?}", world.reasons());
        }
    });
}

/// A packet from one pod of the node to the other, and one from the wire with the same inside.
fn between_pods() -> (Vec<u8>, Vec<u8>) {
    let mut sent = Vec::new();
    PacketBuilder::ethernet2(POD, OTHER)
        .ipv4([10, 244, 0, 3], [10, 244, 0, 4], 64)
        .udp(1, 2)
        .write(&mut sent, &[9; 20])
        .unwrap();
    let wire = geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, &sent);
    (sent, wire)
}

#[test]
fn a_pods_packet_does_not_get_an_entry_by_one_of_the_same_flow_from_the_wire() {
    World::both(|world| {
        let (sent, wire) = between_pods();
        for wire in unfit(&wire) {
            for pod_first in [true, false] {
                // OVS drops the pod's own; the other, of another network, is delivered.
                if pod_first {
                    world.sends(&sent);
                }
                let entered = world.arrives(&wire);
                if !pod_first {
                    world.sends(&sent);
                }
                world.comes_out("to_pod", &sent, world.from_ovs[1], &entered);
                world.sends(&sent);
                let amounts = world.cache.endpoints().unwrap();
                assert_eq!(amounts[0].fast_from.packets, 0, "{:?}", world.reasons());
                world.cache.invalidate().unwrap();
            }
        }
        // What comes out of what the pod sends is learned.
        let entered = world.sends(&sent);
        world.comes_out("to_pod", &sent, world.from_ovs[1], &entered);
        world.sends(&sent);
        assert_eq!(world.cache.endpoints().unwrap()[0].fast_from.packets, 1, "{:?}", world.reasons());
    });
}

#[test]
fn a_packet_from_the_wire_does_not_get_an_entry_by_a_flow_between_pods_of_the_node() {
    World::both(|world| {
        let (sent, forged) = between_pods();
        assert!(!reaches_a_pod(&world, &forged));
        let entered = world.sends(&sent);
        world.comes_out("to_pod", &sent, world.from_ovs[1], &entered);
        assert!(!reaches_a_pod(&world, &forged), "{:?}", world.reasons());
    });
}

#[test]
fn what_a_pod_sent_and_never_came_out_does_not_keep_its_flow_from_being_learned_from_the_tunnel() {
    World::both(|world| {
        let (sent, wire) = between_pods();
        world.sends(&sent);
        let deliver = || {
            let tag = &world.arrives(&wire);
            world.comes_out("to_pod", &sent, world.from_ovs[1], tag);
        };
        deliver();
        assert!(reaches_a_pod(&world, &wire), "{:?}", world.reasons());
    });
}

#[test]
fn a_pods_packet_that_left_no_note_because_of_an_older_one_is_not_credited_to_one_from_the_wire() {
    World::both(|world| {
        let (sent, wire) = between_pods();
        world.sends(&sent);
        world.cache.invalidate().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let late = world.sends(&sent);
        std::thread::sleep(Duration::from_millis(100));
        // OVS drops what comes from the wire.
        world.arrives(&wire);
        world.comes_out("to_pod", &sent, world.from_ovs[1], &late);
        assert!(!reaches_a_pod(&world, &wire), "{:?}", world.reasons());
    });
}

#[test]
fn of_several_packets_inside_ovs_while_the_epoch_moves_none_is_taken_for_a_younger_one() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let held: Vec<_> = (0..3).map(|_| world.sends(&sent)).collect();
        world.cache.invalidate().unwrap();
        for tag in held {
            // One enters, which OVS drops now, and one that was let through before comes out.
            world.sends(&sent);
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &tag);
        }
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
        assert!(!is_fast(&world, UDP));
    });
}

#[test]
fn a_note_of_the_epoch_before_stays_until_all_that_entered_under_it_are_out() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        world.sends(&sent);
        std::thread::sleep(Duration::from_millis(200));
        // In interposed mode without a note of its own.
        let held = world.sends(&sent);
        world.cache.invalidate().unwrap();
        // The first one cannot be inside any more, the second one can.
        std::thread::sleep(Duration::from_millis(100));
        world.sends(&sent);
        world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &held);
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
    });
}

#[test]
fn the_tag_of_an_earlier_use_of_a_slot_says_nothing() {
    // Direct mode, in which the tag is beside the packet: OVS may have held it while the slot was used again.
    World::run(false, |world| {
        let (sent, geneve) = UDP.out();
        let entered = world.sends(&sent);
        let slot_used_before = entered.tag.wrapping_sub(1 << 16) & 0x00ff_0000 | entered.tag & 0xff00_ffff;
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, slot_used_before);
        assert_eq!((world.count(Reason::Learned), world.count(Reason::NoteMissing)), (0, 1));
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, entered.tag);
        assert_eq!(world.count(Reason::Learned), 1, "{:?}", world.reasons());
    });
}
