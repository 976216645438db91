//! Laws of [`ebpf::decide::admit`]: what never gets as far as an entry.

use ebpf::{
    Reason,
    decide::admit::{
        Next, Outside, addressed, endpoint, is_for_node, pod_packet, receiver, tunnel, tunnel_packet,
    },
    layout::{
        flow::{GATE_FORWARD, GATE_TCP},
        maps::{Config, PORT_FAST, PORT_PRESENT, Port},
    },
};
use proptest::prelude::*;

fn port(flags: u32, diverged: u32) -> Port {
    Port { flags, diverged, slot: 9, ..Port::default() }
}

proptest! {
    #[test]
    fn a_closed_gate_forwards_nothing(
        gate in any::<u32>(), flags in any::<u32>(), diverged in 0_u32..4, epoch in 0_u32..4,
        (vlan, ours, plain, sum_is_right) in any::<(bool, bool, bool, bool)>(),
    ) {
        let closed = gate & !GATE_FORWARD;
        prop_assert_eq!(endpoint(closed, &port(flags, diverged), epoch), Err(Reason::GateClosed));
        let outside = Outside { vlan, ours, plain, sum_is_right };
        prop_assert_eq!(tunnel(closed, outside), Err(Reason::GateClosed));
        let sound = !vlan && ours && plain && sum_is_right;
        prop_assert_eq!(tunnel(gate | GATE_FORWARD, outside).is_ok(), sound);
    }

    #[test]
    fn an_endpoint_takes_part_by_its_flag_and_not_in_the_epoch_in_which_it_diverged(
        flags in any::<u32>(), diverged in 0_u32..4, epoch in 0_u32..4,
    ) {
        let port = port(flags, diverged);
        let takes_part = flags & PORT_FAST != 0 && diverged != epoch;
        prop_assert_eq!(endpoint(GATE_FORWARD, &port, epoch).is_ok(), takes_part);
        prop_assert_eq!(receiver(Some(&port), epoch).ok(), takes_part.then_some(9));
    }

    #[test]
    fn a_closed_gate_for_tcp_forwards_no_tcp(gate in any::<u32>(), bits in any::<(bool, bool)>()) {
        let closed = gate & !GATE_TCP;
        let (flag, changes) = bits;
        prop_assert_ne!(pod_packet(closed, flag, true, changes), Next::Lookup);
        prop_assert_ne!(tunnel_packet(closed, flag, true, changes), Next::Lookup);
    }

    #[test]
    fn what_begins_or_ends_a_connection_and_what_is_not_the_pods_is_for_ovs(
        gate in any::<u32>(), ok in any::<bool>(), tcp in any::<bool>(),
    ) {
        prop_assert_ne!(pod_packet(gate, ok, tcp, true), Next::Lookup);
        prop_assert_ne!(tunnel_packet(gate, ok, tcp, true), Next::Lookup);
        prop_assert_eq!(pod_packet(gate, false, tcp, ok), Next::Slow(Reason::SourceMismatch));
        prop_assert_eq!(tunnel_packet(gate, false, tcp, ok), Next::Slow(Reason::CongestionMark));
    }

    #[test]
    fn only_packets_for_the_tunnel_endpoint_are_this_nodes(
        local in prop_oneof![Just([0; 4]), any::<[u8; 4]>()], mac in any::<[u8; 6]>(), at in 0_usize..10, bit in 0_u8..8, change in any::<bool>(),
    ) {
        let config = Config { local, mac: words(&mac), ..Config::default() };
        let mut bytes = [0; 10];
        bytes[..6].copy_from_slice(&mac);
        bytes[6..].copy_from_slice(&local);
        if change {
            bytes[at] ^= 1 << bit;
        }
        let destination = u32::from_ne_bytes(*bytes.last_chunk().unwrap());
        let ours = is_for_node(words(bytes.first_chunk().unwrap()), destination, &config);
        prop_assert_eq!(ours, !change && local != [0; 4]);
    }

    #[test]
    fn only_the_ports_own_mac_to_one_station_makes_an_entry(
        to in any::<[u8; 6]>(), from in any::<[u8; 6]>(), at in 0_usize..6, bit in 0_u8..8, change in any::<bool>(),
    ) {
        let mut own = from;
        if change {
            own[at] ^= 1 << bit;
        }
        let mut bytes = [0; 12];
        bytes[..6].copy_from_slice(&to);
        bytes[6..].copy_from_slice(&from);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let expected = if change {
            Err(Reason::SourceMismatch)
        } else if to[0] & 1 != 0 {
            Err(Reason::Multicast)
        } else {
            Ok(())
        };
        prop_assert_eq!(addressed(&[word(0), word(4), word(8)], &own), expected);
    }
}

/// A MAC as the words that it is at the front of a packet.
fn words(mac: &[u8; 6]) -> [u32; 2] {
    let [a, b, c, d, e, f] = *mac;
    [u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]).into()]
}

#[test]
fn a_port_that_is_gone_receives_nothing() {
    assert_eq!(receiver(None, 1), Err(Reason::EndpointSlow));
    assert_eq!(receiver(Some(&port(PORT_PRESENT, 0)), 1), Err(Reason::EndpointSlow));
}
