//! UDP is learned from the second packet of a flow.

use std::time::Duration;

use node_agent::{
    bpf::{Options, Passed, Reason},
    flow_cache::{FlowCache, Timing},
};

use super::world::{Shape, UDP, World, is_fast, learn, learn_back, unmarked};
use crate::packets::patched;

fn both(test: impl Fn(World) + Send + Clone + 'static) {
    for interposed in [false, true] {
        World::run_with(interposed, Options::default(), test.clone());
    }
}

/// Whether the packet has a note.
fn is_noted(passed: &Passed, packet: &[u8]) -> bool {
    passed.tag != 0 || passed.packet != packet
}

fn is_fast_back(world: &World, shape: Shape) -> bool {
    world.arrives(&shape.back().0).packet == shape.back().1
}

#[test]
fn the_first_packet_leaves_no_note_and_the_second_teaches() {
    both(|world| {
        for shape in [UDP, Shape { six: true, ..UDP }] {
            let (sent, geneve) = shape.out();
            let before = world.count(Reason::FirstPacket);
            let first = world.sends(&sent);
            assert!(!is_noted(&first, &sent));
            assert_eq!(world.count(Reason::FirstPacket), before + 1);
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &first);
            let second = world.sends(&sent);
            assert!(is_noted(&second, &sent), "{:?}", world.reasons());
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &second);
            assert!(is_fast(&world, shape), "{:?}", world.reasons());
            // The other direction is a flow of its own.
            learn_back(&world, shape);
            assert!(!is_fast_back(&world, shape));
            learn_back(&world, shape);
            assert!(is_fast_back(&world, shape), "{:?}", world.reasons());
        }
        assert_eq!((world.count(Reason::FirstPacket), world.count(Reason::Learned)), (4, 4));
    });
}

#[test]
fn questions_from_a_new_port_each_and_their_answers_take_no_notes() {
    both(|world| {
        let (sent, geneve) = UDP.out();
        let (back, delivered) = UDP.back();
        let mut first = 0;
        for port in 30_000..31_000_u16 {
            let port = port.to_be_bytes();
            let no_sum = |packet: &[u8], ip: usize, at: usize| {
                patched(patched(packet.to_vec(), ip + 20 + at, &port), ip + 26, &[0, 0])
            };
            world.through_ovs(&no_sum(&sent, 14, 0), &no_sum(&geneve, 72, 0));
            world.delivered_by_ovs(&no_sum(&back, 72, 2), &no_sum(&delivered, 14, 2));
            first += 2;
        }
        // Two that share a slot and a hash would be a strange chance.
        assert_eq!((world.count(Reason::FirstPacket), world.count(Reason::Learned)), (first, 0));
        assert_eq!(world.count(Reason::PortBudget), 0);
    });
}

#[test]
fn a_packet_long_after_another_is_a_first_one_again() {
    both(|world| {
        learn(&world, UDP);
        std::thread::sleep(Duration::from_millis(1_100));
        learn(&world, UDP);
        assert_eq!((world.count(Reason::FirstPacket), world.count(Reason::Learned)), (2, 0));
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
    });
}

#[test]
fn an_entry_that_is_no_longer_valid_is_learned_anew_from_the_next_packet() {
    both(|world| {
        world.cache.set_timing(Timing { refresh: Duration::from_millis(400), ..Timing::default() }).unwrap();
        learn(&world, UDP);
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        world.cache.invalidate().unwrap();
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        // Overdue.
        std::thread::sleep(Duration::from_millis(1_500));
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!((world.count(Reason::FirstPacket), world.count(Reason::Overdue)), (1, 1));
    });
}

#[test]
fn an_aggregate_is_more_than_one_packet() {
    World::run_with(false, Options::default(), |world| {
        let (sent, _) = Shape { payload: 600, ..UDP }.out();
        let given = node_agent::bpf::Given { packet: &sent, ifindex: world.pods[0], tag: 0, gso_size: 200 };
        let passed = world.lock().pass("from_pod", given).unwrap();
        assert!(is_noted(&passed, &sent) && unmarked(&passed.packet) == unmarked(&sent));
        assert_eq!(world.count(Reason::FirstPacket), 0, "{:?}", world.reasons());
    });
}
