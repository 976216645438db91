//! Deadlines, divergence, gates, heartbeat and budget.

use std::time::{Duration, Instant};

use node_agent::{
    bpf::Reason,
    flow_cache::{FlowCache, Gate, HOLD, Timing},
};

use super::world::{OPEN, OTHER, OTHER_NODE, Shape, TCP, UDP, World, is_fast, learn, learn_back, unmarked};
use crate::packets::patched;

/// A node whose entries are due after `refresh`.
fn timed(world: &World, refresh: u64, grace: u64) {
    let timing = Timing {
        refresh: Duration::from_millis(refresh),
        grace: Duration::from_millis(grace),
        ..Timing::default()
    };
    world.cache.set_timing(timing).unwrap();
}

#[test]
fn an_entry_asks_ovs_again_and_lives_on_when_the_answer_is_the_same() {
    World::both(|world| {
        timed(&world, 50, 10_000);
        learn(&world, UDP);
        std::thread::sleep(Duration::from_millis(80));
        let (sent, geneve) = UDP.out();
        let probe = world.sends(&sent);
        assert_eq!(unmarked(&probe.packet), unmarked(&sent), "the refresh packet goes to OVS");
        assert_eq!(world.count(Reason::Probe), 1, "{:?}", world.reasons());
        assert!(is_fast(&world, UDP), "the others do not wait for it");
        // OVS may choose another source port; the entry follows.
        let moved = patched(geneve, 34, &[0xc9, 0x01]);
        world.comes_out("to_uplink", &moved, world.uplink_from_ovs, &probe);
        assert_eq!((world.count(Reason::Refreshed), world.count(Reason::SourcePortChanged)), (1, 1));
        assert_eq!(world.sends(&sent).packet, moved);
        assert_eq!(world.count(Reason::Diverged), 0);
    });
}

#[test]
fn a_new_entry_asks_after_a_quarter_of_the_time_and_once_so_early() {
    World::both(|world| {
        timed(&world, 1_600, 10_000);
        learn(&world, UDP);
        let begin = Instant::now();
        let at = |ms| std::thread::sleep(Duration::from_millis(ms).saturating_sub(begin.elapsed()));
        at(200);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        at(500);
        let (sent, geneve) = UDP.out();
        let probe = world.sends(&sent);
        assert_eq!(world.count(Reason::Probe), 1, "{:?}", world.reasons());
        world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &probe);
        at(1_300);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        at(2_300);
        assert!(!is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!((world.count(Reason::Probe), world.count(Reason::Refreshed)), (2, 1));
    });
}

#[test]
fn an_entry_that_was_not_used_at_its_early_deadline_is_trusted_as_long_as_any() {
    World::both(|world| {
        timed(&world, 800, 10_000);
        learn(&world, UDP);
        learn(&world, TCP);
        learn_back(&world, TCP);
        // The early deadline was after 200 ms; OVS had the last packet 1.5 s ago, and is trusted for 1.8 s.
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(world.cache.sweep().unwrap().removed, 0);
        for shape in [UDP, TCP] {
            let (sent, geneve) = shape.out();
            let probe = world.sends(&sent);
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &probe);
            assert!(is_fast(&world, shape), "{:?}", world.reasons());
        }
        let counts = [Reason::Probe, Reason::Refreshed, Reason::Overdue].map(|reason| world.count(reason));
        assert_eq!(counts, [2, 2, 0], "{:?}", world.reasons());
    });
}

#[test]
fn an_entry_whose_refresh_packet_does_not_come_out_dies() {
    World::both(|world| {
        timed(&world, 20, 60);
        learn(&world, UDP);
        learn_back(&world, UDP);
        std::thread::sleep(Duration::from_millis(40));
        assert!(!is_fast(&world, UDP), "the refresh packet");
        world.pass("from_uplink", &UDP.back().0, world.uplink, 0);
        std::thread::sleep(Duration::from_millis(80));
        assert!(!is_fast(&world, UDP));
        let geneve = UDP.back().0;
        assert_eq!(unmarked(&world.arrives(&geneve).packet), unmarked(&geneve));
        assert_eq!(world.count(Reason::Dead), 2, "{:?}", world.reasons());
    });
}

#[test]
fn another_answer_in_the_same_epoch_is_told_with_both_and_takes_the_endpoint_off() {
    World::both(|world| {
        timed(&world, 0, 10_000);
        learn(&world, UDP);
        learn(&world, Shape { six: true, ..UDP });
        let (sent, geneve) = UDP.out();
        // The same flow, to another node.
        let other = patched(geneve, 30, &OTHER_NODE);
        world.through_ovs(&sent, &other);
        assert_eq!(world.count(Reason::Diverged), 1, "{:?}", world.reasons());
        let told = world.cache.divergences().unwrap();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].endpoint.as_str(), told[0].protocol), ("a", 17));
        assert_ne!(told[0].remembered.header, told[0].ovs.header);
        assert_eq!(&told[0].ovs.header[60..68], "ac120004");
        assert_eq!(world.cache.divergences().unwrap(), []);
        // Every flow of the endpoint is slow, until the epoch moves.
        timed(&world, 10_000, 10_000);
        assert!(!is_fast(&world, Shape { six: true, ..UDP }));
        assert!(world.count(Reason::EndpointDiverged) > 0);
        assert_eq!(world.cache.endpoints().unwrap()[0].diverged, Some(world.cache.epoch().unwrap()));
        world.cache.invalidate().unwrap();
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
    });
}

#[test]
fn a_delivery_that_ovs_changed_is_a_divergence_too() {
    World::both(|world| {
        timed(&world, 0, 10_000);
        learn_back(&world, UDP);
        let (geneve, delivered) = UDP.back();
        world.delivered_by_ovs(&geneve, &patched(delivered, 6, &OTHER));
        assert_eq!(world.count(Reason::Diverged), 1, "{:?}", world.reasons());
        assert_eq!(world.cache.divergences().unwrap()[0].ovs.kind, "deliver");
    });
}

#[test]
fn each_gate_keeps_out_what_it_is_for() {
    World::both(|world| {
        learn(&world, UDP);
        learn(&world, TCP);
        learn_back(&world, TCP);
        world.cache.set_gate(Gate { tcp: false, ..OPEN }).unwrap();
        assert!(is_fast(&world, UDP) && !is_fast(&world, TCP));
        assert_eq!(world.count(Reason::TcpGateClosed), 1);
        world.cache.set_gate(Gate { forward: false, ..OPEN }).unwrap();
        assert!(!is_fast(&world, UDP));
        world.cache.set_gate(Gate { learn: false, ..OPEN }).unwrap();
        assert!(is_fast(&world, UDP), "what is known is used");
        world.cache.invalidate().unwrap();
        let before = world.count(Reason::Learned);
        learn(&world, UDP);
        assert_eq!(world.count(Reason::Learned), before);
        assert!(world.count(Reason::LearningOff) > 0);
    });
}

#[test]
fn while_ovs_is_away_entries_are_not_sent_to_it() {
    World::both(|world| {
        timed(&world, 10, 10_000);
        learn(&world, UDP);
        world.cache.set_gate(Gate { hold: true, ..OPEN }).unwrap();
        std::thread::sleep(Duration::from_millis(40));
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        world.cache.set_gate(OPEN).unwrap();
        assert!(!is_fast(&world, UDP), "now it is asked");
    });
}

#[test]
fn a_hold_ends_although_no_agent_ends_it_and_setting_it_again_does_not_prolong_it() {
    World::run(true, |world| {
        timed(&world, 10, 10_000);
        learn(&world, UDP);
        let hold = Gate { hold: true, learn: false, ..OPEN };
        world.cache.set_gate(hold).unwrap();
        let begin = Instant::now();
        std::thread::sleep(HOLD - Duration::from_secs(1));
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        // An agent that is started anew.
        world.cache.set_gate(hold).unwrap();
        assert!(world.cache.hold_left().unwrap() < Duration::from_millis(1_100));
        std::thread::sleep((HOLD + Duration::from_millis(50)).saturating_sub(begin.elapsed()));
        assert!(!is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!(world.cache.hold_left().unwrap(), Duration::ZERO);
    });
}

#[test]
fn without_a_heartbeat_for_five_seconds_nothing_new_is_learned_and_nothing_known_is_lost() {
    World::both(|world| {
        timed(&world, 60_000, 200);
        learn(&world, UDP);
        std::thread::sleep(Duration::from_millis(5_100));
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        let six = Shape { six: true, ..UDP };
        learn(&world, six);
        assert!(!is_fast(&world, six));
        assert_eq!(world.count(Reason::NoHeartbeat), 1);
        world.cache.heartbeat().unwrap();
        // The note of the packet before has to be forgotten.
        std::thread::sleep(Duration::from_millis(1_100));
        learn(&world, six);
        assert!(is_fast(&world, six), "{:?}", world.reasons());
    });
}

#[test]
fn without_a_heartbeat_what_is_known_is_still_asked_for_and_goes_on() {
    World::both(|world| {
        timed(&world, 50, 10_000);
        learn(&world, UDP);
        let (sent, geneve) = UDP.out();
        let end = Instant::now() + Duration::from_millis(6_000);
        let mut late = 0;
        while Instant::now() < end {
            let passed = world.sends(&sent);
            if passed.packet.len() == sent.len() {
                late += u32::from(end.duration_since(Instant::now()) < Duration::from_millis(800));
                world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &passed);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(late > 0, "entries were asked for after the limit too");
        assert_eq!(
            (world.count(Reason::Learned), world.count(Reason::NoHeartbeat)),
            (1, 0),
            "{:?}",
            world.reasons()
        );
        assert!(world.count(Reason::Refreshed) > 10);
    });
}

#[test]
fn a_scan_uses_up_its_budget_and_what_is_busy_stays() {
    World::both(|world| {
        world.cache.set_timing(Timing { budget: 8, ..Timing::default() }).unwrap();
        learn(&world, UDP);
        let end = Instant::now() + Duration::from_secs(10);
        let mut port = 1000_u16;
        while world.count(Reason::OverBudget) == 0 && Instant::now() < end {
            port += 1;
            let (sent, geneve) = UDP.out();
            let mut sent = patched(sent, 34, &port.to_be_bytes());
            let mut geneve = patched(geneve, 58 + 34, &port.to_be_bytes());
            // No UDP checksum.
            sent[40..42].copy_from_slice(&[0, 0]);
            geneve[58 + 40..58 + 42].copy_from_slice(&[0, 0]);
            world.through_ovs(&sent, &geneve);
        }
        assert!(world.count(Reason::OverBudget) > 0, "{:?}", world.reasons());
        assert!(is_fast(&world, UDP));
    });
}

#[test]
fn a_pod_that_sends_what_is_never_learned_takes_no_notes_from_another() {
    World::both(|world| {
        let (sent, _) = UDP.out();
        // OVS drops all of it. More than there are notes.
        for port in 1..40_000_u16 {
            let sent = patched(patched(sent.clone(), 34, &port.to_be_bytes()), 40, &[0, 0]);
            world.sends(&sent);
        }
        assert!(world.count(Reason::PortBudget) > 10_000, "{:?}", world.reasons());
        assert_eq!(world.count(Reason::NoSlot), 0, "{:?}", world.reasons());
        // What comes from the tunnel is another port's.
        learn_back(&world, TCP);
        learn_back(&world, UDP);
        assert_eq!(world.count(Reason::Learned), 2, "{:?}", world.reasons());
    });
}
