//! TCP connections, from their SYN to their FINs or RST.

use etherparse::PacketBuilder;
use node_agent::{bpf::Reason, flow_cache::FlowCache};

use super::translation::{FAR4, Packet, Service, assert_sums, service};
use super::world::{
    FAR_UPLINK, SIX_FAR, Shape, TCP, UPLINK, World, geneve, is_fast, learn, learn_back, outer,
};
use crate::packets::{FAR, NEAR, patched};

const SHAPES: [Shape; 2] = [TCP, Shape { six: true, ..TCP }];

/// A segment of the same connection with these flags.
fn with(shape: Shape, flags: &'static str) -> Shape {
    Shape { tcp: Some(flags), ..shape }
}

/// Whether a packet from the wire reaches the pod past OVS.
fn is_fast_back(world: &World, shape: Shape) -> bool {
    let (geneve, delivered) = shape.back();
    world.arrives(&geneve).packet == delivered
}

/// OVS lets a segment through. `back`: from the other node.
fn passes(world: &World, shape: Shape, back: bool) {
    if back { learn_back(world, shape) } else { learn(world, shape) }
}

/// The handshake of a connection that the pod opens, or the other node's pod (`back`).
fn shaken(world: &World, shape: Shape, back: bool) {
    passes(world, with(shape, "S"), back);
    passes(world, with(shape, "SA"), !back);
    passes(world, shape, back);
}

fn entries(world: &World) -> usize {
    world.cache.flows(100).unwrap().len()
}

#[test]
fn after_the_handshake_request_and_answer_are_fast() {
    World::both(|world| {
        for (shape, back) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let before = world.count(Reason::Learned);
            let learned = || world.count(Reason::Learned) - before;
            passes(&world, with(shape, "S"), back);
            assert_eq!(learned(), 0, "a SYN teaches nothing");
            passes(&world, with(shape, "SA"), !back);
            assert_eq!((learned(), entries(&world)), (1, 1), "{:?}", world.reasons());
            passes(&world, shape, back);
            assert_eq!(learned(), 2, "{:?}", world.reasons());
            assert!(is_fast(&world, shape) && is_fast_back(&world, shape), "{:?}", world.reasons());
            assert_eq!(world.count(Reason::Waiting), 0);
            // The next one, of the same ends.
            passes(&world, with(shape, "S"), back);
            assert_eq!(entries(&world), 0);
            assert!(!is_fast(&world, shape) && !is_fast_back(&world, shape));
            world.cache.invalidate().unwrap();
            world.cache.sweep().unwrap();
        }
    });
}

#[test]
fn a_scan_leaves_nothing() {
    World::both(|world| {
        for (shape, back) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            // A closed port.
            passes(&world, with(shape, "S"), back);
            passes(&world, with(shape, "RA"), !back);
            assert_eq!(entries(&world), 0);
            // An open one: the scanner resets, at once or when it has connected.
            for opens in [false, true] {
                passes(&world, with(shape, "S"), back);
                passes(&world, with(shape, "SA"), !back);
                if opens {
                    passes(&world, shape, back);
                }
                passes(&world, with(shape, "R"), back);
                assert_eq!(entries(&world), 0, "{:?}", world.reasons());
            }
        }
    });
}

#[test]
fn a_syn_ack_that_ovs_drops_teaches_nothing_and_takes_of_its_ports_notes_alone() {
    World::both(|world| {
        let (sent, _) = with(TCP, "SA").out();
        for port in 1..20_000_u16 {
            world.sends(&patched(sent.clone(), 36, &port.to_be_bytes()));
        }
        assert!(world.count(Reason::PortBudget) > 0, "{:?}", world.reasons());
        assert_eq!((world.count(Reason::Learned), world.count(Reason::NoSlot)), (0, 0));
        learn_back(&world, with(TCP, "SA"));
        assert_eq!(world.count(Reason::Learned), 1, "what comes from the tunnel is another port's");
    });
}

#[test]
fn a_repeated_syn_ack_is_answered_by_an_ack_that_opens_the_connection_again() {
    World::both(|world| {
        shaken(&world, TCP, false);
        assert!(is_fast(&world, TCP));
        learn_back(&world, with(TCP, "SA"));
        learn(&world, TCP);
        assert!(is_fast(&world, TCP) && is_fast_back(&world, TCP), "{:?}", world.reasons());
        assert_eq!(world.count(Reason::Diverged), 0);
    });
}

#[test]
fn ends_that_open_at_once_are_fast_when_both_have_said_something() {
    World::both(|world| {
        for (flags, back) in [("S", false), ("S", true), ("SA", false), ("SA", true)] {
            passes(&world, with(TCP, flags), back);
        }
        learn(&world, TCP);
        assert!(is_fast_back(&world, TCP) && is_fast(&world, TCP), "{:?}", world.reasons());
    });
}

#[test]
fn data_before_the_handshakes_ack_does_not_open_the_connection() {
    World::both(|world| {
        // TCP Fast Open (RFC 7413): data in the SYN and right behind the SYN-ACK.
        learn(&world, with(TCP, "S"));
        learn_back(&world, Shape { payload: 90, ..with(TCP, "SA") });
        assert!(!is_fast_back(&world, TCP));
        learn(&world, TCP);
        assert!(is_fast_back(&world, TCP) && is_fast(&world, TCP), "{:?}", world.reasons());
    });
}

#[test]
fn a_fin_ends_its_own_direction_and_the_other_one_goes_on_until_its_own() {
    World::both(|world| {
        for (shape, back) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let fast = |back: bool| if back { is_fast_back(&world, shape) } else { is_fast(&world, shape) };
            shaken(&world, shape, false);
            assert!(fast(false) && fast(true), "{:?}", world.reasons());
            // OVS has it.
            passes(&world, with(shape, "FA"), back);
            let learned = world.count(Reason::Learned);
            passes(&world, shape, back);
            assert!(!fast(back), "it has ended");
            assert!(fast(!back), "{:?}", world.reasons());
            passes(&world, with(shape, "FA"), !back);
            passes(&world, shape, !back);
            assert!(!fast(back) && !fast(!back));
            assert_eq!(
                world.count(Reason::Learned),
                learned,
                "after its FIN nothing is learned of a direction"
            );
            assert!(world.cache.flows(10).unwrap().iter().all(|flow| flow.closing && !flow.valid));
            // Another connection on the same ports.
            shaken(&world, shape, !back);
            assert!(fast(false) && fast(true), "{:?}", world.reasons());
            world.cache.invalidate().unwrap();
            world.cache.sweep().unwrap();
        }
    });
}

#[test]
fn an_answer_that_begins_after_the_clients_fin_is_fast() {
    World::both(|world| {
        shaken(&world, TCP, false);
        learn(&world, with(TCP, "FPA"));
        assert!(is_fast_back(&world, TCP), "{:?}", world.reasons());
    });
}

#[test]
fn a_rst_ends_both_directions_until_the_next_syn() {
    World::both(|world| {
        for (flags, back) in [("R", false), ("R", true), ("RA", false), ("RA", true)] {
            shaken(&world, TCP, back);
            assert!(is_fast(&world, TCP) && is_fast_back(&world, TCP), "{:?}", world.reasons());
            passes(&world, with(TCP, flags), back);
            for _ in 0..2 {
                learn(&world, TCP);
                learn_back(&world, TCP);
            }
            assert!(world.cache.flows(10).unwrap().iter().all(|flow| flow.closing));
        }
    });
}

#[test]
fn a_syn_ack_begins_another_connection_where_the_syn_was_not_seen() {
    World::both(|world| {
        shaken(&world, TCP, false);
        assert!(is_fast(&world, TCP));
        learn(&world, with(TCP, "FA"));
        learn_back(&world, with(TCP, "FA"));
        learn_back(&world, with(TCP, "SA"));
        learn(&world, TCP);
        assert!(is_fast(&world, TCP) && is_fast_back(&world, TCP), "{:?}", world.reasons());
    });
}

#[test]
fn a_fin_that_is_not_looked_at_where_it_enters_is_seen_where_it_comes_out() {
    World::both(|world| {
        for (flags, out) in [("FA", true), ("R", false)] {
            shaken(&world, TCP, false);
            assert!(is_fast(&world, TCP) && is_fast_back(&world, TCP), "{:?}", world.reasons());
            let (geneve, delivered) = with(TCP, flags).back();
            let marked = outer(&geneve, 15, &[3]);
            let entered = world.arrives(&marked);
            assert!(is_fast_back(&world, TCP), "{flags}: {:?}", world.reasons());
            world.comes_out("to_pod", &delivered, world.from_ovs[0], &entered);
            assert!(!is_fast_back(&world, TCP), "{flags}");
            assert_eq!(is_fast(&world, TCP), out, "{flags}");
        }
        assert_eq!(world.count(Reason::CongestionMark), 2);
    });
}

#[test]
fn what_a_stranger_sends_ends_no_connection() {
    World::both(|world| {
        shaken(&world, TCP, false);
        for flags in ["S", "SA", "FA", "R"] {
            let forged = super::world::from_node(&with(TCP, flags).back().0, super::world::STRANGER);
            world.arrives(&forged);
            assert!(is_fast(&world, TCP) && is_fast_back(&world, TCP), "{flags}: {:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::UnknownRemote), 4);
    });
}

#[test]
fn a_connection_to_a_service_is_fast_after_its_handshake_and_ends_with_both_its_tuples() {
    World::both(|world| {
        for six in [false, true] {
            let Service { asked, asked_after, answered, answered_after } =
                service(six, true, (FAR4, SIX_FAR), true);
            let out = |packet: &[u8]| geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, packet);
            let back = |packet: &[u8]| geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, packet);
            let ask = |flags| world.through_ovs(&segment(asked, flags), &out(&segment(asked_after, flags)));
            let answer = |flags| {
                world.delivered_by_ovs(&back(&segment(answered, flags)), &segment(answered_after, flags))
            };
            let asks = || world.sends(&segment(asked, "A")).packet == out(&segment(asked_after, "A"));
            let answers =
                || world.arrives(&back(&segment(answered, "A"))).packet == segment(answered_after, "A");
            ask("S");
            answer("SA");
            ask("A");
            assert!(asks() && answers(), "IPv6 {six}: {:?}", world.reasons());
            assert_sums(&world.sends(&segment(asked, "A")).packet[58..], "the request");
            ask("FA");
            assert!(!asks() && answers(), "IPv6 {six}: {:?}", world.reasons());
            answer("FA");
            assert!(!asks() && !answers());
            // The same ports again, and another RST.
            ask("S");
            answer("SA");
            ask("A");
            assert!(asks() && answers(), "IPv6 {six}: {:?}", world.reasons());
            answer("R");
            assert!(!asks() && !answers());
        }
        assert_eq!(world.count(Reason::Diverged), 0);
    });
}

/// The packet with these flags.
fn segment(packet: Packet, flags: &str) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(packet.macs.0, packet.macs.1);
    let ip = match packet.six {
        Some((from, to)) => ethernet.ipv6(from, to, packet.ttl),
        None => ethernet.ipv4(packet.four.0, packet.four.1, packet.ttl),
    };
    let mut tcp = ip.tcp(packet.ports.0, packet.ports.1, 77, 1000);
    for flag in flags.chars() {
        tcp = match flag {
            'S' => tcp.syn(),
            'A' => tcp.ack(7),
            'F' => tcp.fin(),
            'R' => tcp.rst(),
            other => panic!("{other}"),
        };
    }
    let mut bytes = Vec::new();
    tcp.write(&mut bytes, &[1, 2, 3, 4]).unwrap();
    bytes
}
