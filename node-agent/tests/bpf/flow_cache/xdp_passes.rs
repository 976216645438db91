//! What the XDP program leaves to the TC programs: as it came, and counted by nobody but them; and what it drops, if it is told to.

use std::time::Duration;

use node_agent::{
    bpf::{Options, Reason, Verdict},
    flow_cache::{FlowCache, Gate, ScopeChange, Timing},
};

use super::{
    sides::{Connection, End, Nat, connection},
    translation::Packet,
    world::{OPEN, STRANGER, World, from_node, outer},
    xdp::{NATIVE, arrives, both, learned},
};
use crate::packets::{arp, patched, tagged};

/// The packet is passed on as it is, and nothing is counted or changed.
fn passes(world: &World, packet: &[u8], what: &str) {
    let state = || {
        let flows = world.cache.flows(100).unwrap().into_iter();
        let mut flows: Vec<_> = flows
            .map(|f| (f.source, f.source_port, f.valid, f.closing, f.probing, f.epoch, f.packets, f.bytes))
            .collect();
        flows.sort();
        (world.reasons(), flows)
    };
    let before = state();
    let passed = arrives(world, packet);
    assert_eq!(passed.verdict, Verdict::Pass, "{what}");
    assert!(passed.packet == packet, "{what}: the packet was changed");
    assert_eq!(before, state(), "{what}");
}

fn sends(world: &World, packet: &[u8], what: &str) {
    assert_eq!(arrives(world, packet).verdict, Verdict::SentBack, "{what}: {:?}", world.reasons());
}

/// Flags of TCP behind IPv4 at `ip`.
fn flags(packet: &[u8], ip: usize, flags: u8) -> Vec<u8> {
    patched(packet.to_vec(), ip + 33, &[flags])
}

#[test]
fn what_is_not_simply_forwarded_passes_as_it_came() {
    both(|world| {
        let Connection { asked, answered, .. } =
            learned(&world, End::Outside, End::Tunnel, Nat::Both, false, true);
        let (plain, tunnelled) = (asked.bytes(), End::Tunnel.wire(&answered.bytes(), true));
        sends(&world, &plain, "as it is");
        sends(&world, &tunnelled, "as it is");
        for (packet, ip) in [(&plain, 14), (&tunnelled, 72)] {
            let with = |at: usize, bytes: &[u8]| patched(packet.clone(), ip + at, bytes);
            for (what, packet) in [
                ("SYN", flags(packet, ip, 0x02)),
                ("SYN and ACK", flags(packet, ip, 0x12)),
                ("FIN", flags(packet, ip, 0x11)),
                ("RST", flags(packet, ip, 0x04)),
                ("no ACK", flags(packet, ip, 0x08)),
                ("a fragment", with(6, &[0x20, 0])),
                ("the end of a fragment", with(6, &[0, 9])),
                ("TTL 1", with(8, &[1])),
                ("a TTL that ends at a router", with(8, &[2])),
                ("options", with(0, &[0x46])),
                ("another version", with(0, &[0x55])),
                ("a length that is not the packet's", with(2, &[0, 60])),
                ("another DSCP", with(1, &[0x28])),
                ("another protocol", with(9, &[1])),
                ("another flow", with(20, &[1])),
                ("another source MAC", patched(packet.clone(), ip - 3, &[9])),
                ("another destination MAC", patched(packet.clone(), ip - 9, &[9])),
                ("a VLAN tag", tagged(packet.clone())),
                ("cut short", packet[..ip + 30].to_vec()),
            ] {
                passes(&world, &packet, what);
            }
        }
        for (what, packet) in [
            ("ARP", arp()),
            ("an outer congestion mark", outer(&tunnelled, 15, &[3])),
            ("another outer source", from_node(&tunnelled, STRANGER)),
            ("another outer destination", outer(&tunnelled, 30, &[9])),
            ("an outer checksum of UDP", patched(tunnelled.clone(), 40, &[1, 1])),
            ("a wrong outer checksum", patched(tunnelled.clone(), 24, &[1, 1])),
            ("another VNI", patched(tunnelled.clone(), 48, &[8])),
            ("another key", patched(tunnelled.clone(), 57, &[9])),
            ("other options", patched(tunnelled.clone(), 53, &[2])),
            ("an outer fragment", outer(&tunnelled, 20, &[0x20, 0])),
            ("too long for the tunnel", Packet { payload: 1_420, ..asked }.bytes()),
            ("short after the tunnel", End::Tunnel.wire(&Packet { payload: 5, ..answered }.bytes(), true)),
        ] {
            passes(&world, &packet, what);
        }
        sends(&world, &plain, "still");
        sends(&world, &tunnelled, "still");
    });
}

#[test]
fn what_the_gate_or_a_change_ends_passes() {
    both(|world| {
        let learn = || {
            let Connection { asked, answered, .. } =
                learned(&world, End::Outside, End::Tunnel, Nat::Destination, true, true);
            (asked.bytes(), End::Tunnel.wire(&answered.bytes(), true))
        };
        let closed = |what: &str, end: &dyn Fn(), begin: &dyn Fn()| {
            let (plain, tunnelled) = learn();
            for packet in [&plain, &tunnelled] {
                sends(&world, packet, what);
            }
            end();
            for packet in [&plain, &tunnelled] {
                passes(&world, packet, what);
            }
            begin();
        };
        let gate = |gate| world.cache.set_gate(gate).unwrap();
        closed("gate", &|| gate(Gate { forward: false, ..OPEN }), &|| gate(OPEN));
        closed("TCP", &|| gate(Gate { tcp: false, ..OPEN }), &|| gate(OPEN));
        closed("epoch", &|| assert_ne!(world.cache.invalidate().unwrap(), 0), &|| ());
        closed("gateway", &|| world.cache.set_gateway(None).unwrap(), &|| {
            let (mac, mtu) = (api::MacAddr(super::world::UPLINK), 1_500);
            world.cache.set_gateway(Some(node_agent::flow_cache::GatewayEnd { mac, mtu })).unwrap();
        });
        closed("a change", &|| world.cache.change_scopes(&ScopeChange::default()).unwrap(), &|| ());
    });
}

#[test]
fn a_refresh_that_is_due_is_the_tc_programs_packet() {
    World::run_with(false, NATIVE, |world| {
        let timing = Timing { refresh: Duration::from_millis(150), ..Timing::default() };
        world.cache.set_timing(timing).unwrap();
        let Connection { asked, .. } = learned(&world, End::Outside, End::Tunnel, Nat::None, false, false);
        sends(&world, &asked.bytes(), "fresh");
        std::thread::sleep(Duration::from_millis(250));
        passes(&world, &asked.bytes(), "due");
        assert_eq!(world.count(Reason::Probe), 0);
        world.arrives(&asked.bytes());
        assert_eq!(world.count(Reason::Probe), 1, "{:?}", world.reasons());
        sends(&world, &asked.bytes(), "while the refresh packet is inside OVS");
    });
}

#[test]
fn a_connection_of_which_one_direction_was_seen_passes_and_so_does_what_is_for_a_pod() {
    World::run_with(false, NATIVE, |world| {
        let Connection { asked, asked_after, .. } =
            connection(End::Outside, End::Tunnel, Nat::None, false, true);
        let entered = End::Outside.enter(&world, &asked.bytes());
        End::Tunnel.leave(&world, &asked_after.bytes(), &entered);
        passes(&world, &asked.bytes(), "waiting");
        let to_pod = learned(&world, End::Outside, End::Pod, Nat::None, false, true);
        passes(&world, &to_pod.asked.bytes(), "to a pod");
        let to_node = learned(&world, End::Outside, End::Bridge, Nat::None, false, true);
        passes(&world, &to_node.asked.bytes(), "to the node");
        let from_tunnel = learned(&world, End::Tunnel, End::Pod, Nat::None, false, true);
        passes(&world, &End::Tunnel.wire(&from_tunnel.asked.bytes(), true), "from a tunnel to a pod");
    });
}

#[test]
fn strangers_and_malformed_tunnel_packets_are_dropped_only_where_the_setting_says_so() {
    for drops in [false, true] {
        World::run_with(false, Options { xdp_drops: drops, ..NATIVE }, move |world| {
            let Connection { asked, answered, .. } =
                learned(&world, End::Outside, End::Tunnel, Nat::Both, false, true);
            let tunnelled = End::Tunnel.wire(&answered.bytes(), true);
            let stranger = from_node(&tunnelled, STRANGER);
            let version = patched(tunnelled.clone(), 42, &[0x42]);
            let overrun = patched(tunnelled.clone(), 53, &[0x1f]);
            let dropped = |packet: &[u8], reason| {
                let before = world.count(reason);
                if drops {
                    assert_eq!(arrives(&world, packet).verdict, Verdict::Drop, "{reason:?}");
                    assert_eq!(world.count(reason), before + 1);
                } else {
                    passes(&world, packet, "pass is the default");
                }
            };
            dropped(&stranger, Reason::XdpUnknownTunnel);
            dropped(&version, Reason::XdpMalformedTunnel);
            dropped(&version, Reason::BadGeneveVersion);
            dropped(&overrun, Reason::OptionOverrun);
            sends(&world, &tunnelled, "of a node");
            sends(&world, &asked.bytes(), "without a tunnel");
            // For somebody else, with a tag, or of other options that are well-formed.
            for packet in
                [outer(&stranger, 30, &[9]), tagged(stranger.clone()), patched(tunnelled.clone(), 51, &[3])]
            {
                passes(&world, &packet, "not the program's to drop");
            }
            for gate in [Gate { forward: false, ..OPEN }, Gate { hold: true, learn: false, ..OPEN }] {
                world.cache.set_gate(gate).unwrap();
                passes(&world, &stranger, "who has a tunnel is not certain");
                world.cache.set_gate(OPEN).unwrap();
            }
            dropped(&stranger, Reason::XdpUnknownTunnel);
        });
    }
}
