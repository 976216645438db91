//! Notes, where several packets of one flow are inside OVS at a time: none is credited with what another did.

use std::time::Duration;

use etherparse::PacketBuilder;
use node_agent::{bpf::Reason, fast_path::FastPath};

use crate::packets::{FAR, NEAR};

use super::world::{FAR_UPLINK, OTHER, POD, Shape, TCP, UDP, UPLINK, World, fix_checksum, geneve, is_fast};

/// The same packet from an outer source that OVS does not know.
fn from_nobody(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[26..30].copy_from_slice(&[172, 18, 0, 9]);
    fix_checksum(&mut packet[14..34]);
    packet
}

/// Whether a packet from the wire leaves the program without its outer headers.
fn reaches_a_pod(world: &World, packet: &[u8]) -> bool {
    world.pass("from_uplink", packet, world.uplink, 0).packet != packet
}

#[test]
fn a_packet_from_an_unknown_outer_source_does_not_get_the_entry_of_the_right_one() {
    World::both(|world| {
        for shape in [UDP, TCP, Shape { six: true, ..UDP }] {
            let (right, delivered) = shape.back();
            let forged = from_nobody(&right);
            for order in [[&forged, &right], [&right, &forged]] {
                let entered = order.map(|packet| world.pass("from_uplink", packet, world.uplink, 0).tag);
                let tag = entered[usize::from(order[1] == &right)];
                // OVS drops the other one.
                world.pass("to_pod", &delivered, world.from_ovs[0], tag);
                assert!(!reaches_a_pod(&world, &forged), "{:?}", world.reasons());
            }
        }
    });
}

#[test]
fn a_packet_from_the_wire_does_not_get_an_entry_by_a_flow_between_pods_of_the_node() {
    World::both(|world| {
        let mut sent = Vec::new();
        PacketBuilder::ethernet2(POD, OTHER)
            .ipv4([10, 244, 0, 3], [10, 244, 0, 4], 64)
            .udp(1, 2)
            .write(&mut sent, &[9; 20])
            .unwrap();
        let forged = geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, &sent);
        assert!(!reaches_a_pod(&world, &forged));
        let entered = world.sends(&sent);
        world.pass("to_pod", &sent, world.from_ovs[1], entered.tag);
        assert!(!reaches_a_pod(&world, &forged), "{:?}", world.reasons());
    });
}

#[test]
fn of_several_packets_inside_ovs_while_the_epoch_moves_none_is_taken_for_a_younger_one() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let held: Vec<_> = (0..3).map(|_| world.sends(&sent).tag).collect();
        world.cache.bump().unwrap();
        for tag in held {
            // One enters, which OVS drops now, and one that was let through before comes out.
            world.sends(&sent);
            world.pass("to_uplink", &geneve, world.uplink_from_ovs, tag);
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
        let held = world.sends(&sent).tag;
        world.cache.bump().unwrap();
        // The first one cannot be inside any more, the second one can.
        std::thread::sleep(Duration::from_millis(100));
        world.sends(&sent);
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, held);
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
    });
}
