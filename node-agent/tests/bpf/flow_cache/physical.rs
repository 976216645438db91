//! Interfaces that lead to physical networks. The VLAN tag is beside the packet, where a run of a program in memory has none: with tags this is
//! tried on the kernel's own datapath (suite `virtual_networks`, trial `localnet`).

use std::{collections::BTreeMap, time::Duration};

use node_agent::{
    bpf::{Options, Programs, Reason, Verdict},
    flow_cache::{FlowCache, PhysicalPort, Timing},
};

use super::{
    sides::{Connection, End, Nat, connection},
    translation::{Packet, assert_sums},
    world::World,
};

const FAST: PhysicalPort = PhysicalPort::Interface { fast: true };

#[test]
fn packets_between_pods_and_a_physical_network_are_learned_and_repeated_byte_for_byte() {
    World::run(false, |world| {
        for (from, to) in [(End::Pod, End::Physical), (End::Physical, End::OtherPod)] {
            for (six, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
                world.cache.invalidate().unwrap();
                world.cache.heartbeat().unwrap();
                let what = format!("{from:?} to {to:?}, IPv6 {six}, TCP {tcp}");
                let Connection { asked, asked_after, answered, answered_after } =
                    connection(from, to, Nat::None, six, tcp);
                let directions = [(from, asked, to, asked_after), (to, answered, from, answered_after)];
                for (one, before, other, after) in directions {
                    let entered = one.enter(&world, &before.bytes());
                    assert_eq!(
                        (entered.verdict, &entered.packet),
                        (Verdict::Pass, &before.bytes()),
                        "{what}"
                    );
                    let out = other.leave(&world, &after.bytes(), &entered);
                    assert_eq!((out.tag, &out.packet), (0, &after.bytes()), "{what}: as it was");
                }
                for (one, before, _, after) in directions {
                    let passed = one.enter(&world, &Packet { payload: 500, ..before }.bytes());
                    let expected = Packet { payload: 500, ..after }.bytes();
                    assert_eq!(passed.packet, expected, "{what}, from {one:?}: {:?}", world.reasons());
                    assert_eq!(passed.verdict, Verdict::Redirect, "{what}");
                    assert_sums(&passed.packet, &what);
                }
            }
        }
        assert_eq!(world.count(Reason::Diverged), 0, "{:?}", world.reasons());
        let all = world.cache.interfaces().unwrap();
        let sum = all.iter().find(|one| one.interface == "physical").unwrap();
        assert_eq!((sum.fast_in.packets, sum.fast_out.packets), (8, 8));
        assert_eq!((sum.slow_in.packets, sum.slow_out.packets), (8, 8));
    });
}

/// Such ways have no place for a VLAN tag, and OVN makes none.
#[test]
fn what_a_physical_network_exchanges_with_others_than_pods_is_not_learned() {
    World::run(false, |world| {
        let others = [End::Tunnel, End::Outside, End::Bridge, End::Management];
        let ways = others.into_iter().flat_map(|end| [(end, End::Physical), (End::Physical, end)]);
        for (from, to) in ways {
            let refused = world.count(Reason::OtherChange) + world.count(Reason::SentBack);
            let Connection { asked, asked_after, .. } = connection(from, to, Nat::None, false, false);
            for _ in 0..2 {
                let entered = from.enter(&world, &asked.bytes());
                assert_eq!(entered.verdict, Verdict::Pass, "{from:?} to {to:?}: {:?}", world.reasons());
                to.leave(&world, &asked_after.bytes(), &entered);
            }
            let now = world.count(Reason::OtherChange) + world.count(Reason::SentBack);
            assert_eq!(now, refused + 2, "{from:?} to {to:?}: {:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::Learned), 0);
    });
}

#[test]
fn what_is_longer_than_a_pod_sends_goes_through_ovs_whatever_the_uplink_takes() {
    World::run(false, |world| {
        let Connection { asked, asked_after, .. } =
            connection(End::Pod, End::Physical, Nat::None, false, false);
        let entered = End::Pod.enter(&world, &asked.bytes());
        End::Physical.leave(&world, &asked_after.bytes(), &entered);
        for (payload, verdict) in [(1_442 - 28, Verdict::Redirect), (1_443 - 28, Verdict::Pass)] {
            let passed = End::Pod.enter(&world, &Packet { payload, ..asked }.bytes());
            assert_eq!(passed.verdict, verdict, "{payload}: {:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::TooLong), 1);
    });
}

#[test]
fn without_its_path_a_physical_network_is_slow_at_once_in_both_directions_and_pods_are_not() {
    World::run(false, |world| {
        let Connection { asked, asked_after, answered, answered_after } =
            connection(End::Pod, End::Physical, Nat::None, false, false);
        let directions = [
            (End::Pod, asked, End::Physical, asked_after),
            (End::Physical, answered, End::Pod, answered_after),
        ];
        for (one, before, other, after) in directions {
            let entered = one.enter(&world, &before.bytes());
            other.leave(&world, &after.bytes(), &entered);
            assert_eq!(one.enter(&world, &before.bytes()).verdict, Verdict::Redirect, "{one:?}");
        }
        let slow = PhysicalPort::Interface { fast: false };
        world.cache.set_physical(&[(world.physical[0], slow)].into()).unwrap();
        for (one, before, ..) in directions {
            assert_eq!(one.enter(&world, &before.bytes()).verdict, Verdict::Pass, "{one:?}");
        }
        // Nothing is left of one that is let go.
        world.cache.set_physical(&BTreeMap::new()).unwrap();
        assert!(world.lock().physical().is_empty());
        assert_eq!(End::Pod.enter(&world, &asked.bytes()).verdict, Verdict::Pass);
        let unknown = world.count(Reason::UnknownPort);
        End::Physical.enter(&world, &answered.bytes());
        assert_eq!(world.count(Reason::UnknownPort), unknown + 1);
    });
}

/// A copy that the bridge floods to its own port carries the number of its note: the node's stack may pass it on, and an egress program
/// would take it for OVS's.
#[test]
fn a_copy_at_the_bridges_own_port_loses_its_number_and_teaches_nothing() {
    World::run(false, |world| {
        let Connection { asked, asked_after, .. } =
            connection(End::Pod, End::Physical, Nat::None, false, false);
        let entered = End::Pod.enter(&world, &asked.bytes());
        assert_ne!(entered.tag, 0);
        let copy = world.comes_out("to_host", &asked_after.bytes(), world.physical[1], &entered);
        assert_eq!((copy.tag, copy.packet, copy.verdict), (0, asked_after.bytes(), Verdict::Pass));
        assert_eq!(world.count(Reason::Learned), 0);
        // The one that leaves by the wire does teach.
        End::Physical.leave(&world, &asked_after.bytes(), &entered);
        assert_eq!(world.count(Reason::Learned), 1);
    });
}

#[test]
fn a_new_agent_takes_over_what_leads_to_physical_networks_with_its_counters() {
    World::run(false, |world| {
        // Programs are loaded for seconds on a busy machine: the entry must not be due by then.
        let timing = Timing { refresh: Duration::from_secs(600), ..Timing::default() };
        world.cache.set_timing(timing).unwrap();
        let Connection { asked, asked_after, .. } =
            connection(End::Pod, End::Physical, Nat::None, false, false);
        let entered = End::Pod.enter(&world, &asked.bytes());
        End::Physical.leave(&world, &asked_after.bytes(), &entered);
        assert_eq!(End::Pod.enter(&world, &asked.bytes()).verdict, Verdict::Redirect);
        let before = world.lock().physical();
        assert_eq!(before, [(world.physical[0], FAST), (world.physical[1], PhysicalPort::Own)].into());
        let counters = |world: &World| world.cache.interfaces().unwrap();
        let counted = counters(&world);
        let dir = world.lock().dir();
        let options = Options { flows: 4096, pod_mtu: 1442, udp_at_once: true, ..Options::default() };
        *world.lock() = Programs::load_with(&dir, options).unwrap();
        assert_eq!(world.lock().physical(), before);
        let after = counters(&world);
        let of = |all: &[_]| all.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>();
        assert_eq!(of(&after), of(&counted));
        let passed = End::Pod.enter(&world, &asked.bytes());
        assert_eq!(passed.verdict, Verdict::Redirect, "{:?}", world.reasons());
    });
}
