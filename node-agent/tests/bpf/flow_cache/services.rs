//! Services that are kept off the flow cache, and what entries count for services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use api::Protocol;
use node_agent::{
    bpf::Reason,
    flow_cache::{Carried, FlowCache, ServiceAddress, ServiceCache, Timing},
};

use super::translation::{FAR4, Packet, Service, VIP, VIP6, service};
use super::world::{FAR_UPLINK, OPEN, SIX_FAR, UDP, UPLINK, World, geneve, is_fast, learn};
use crate::packets::{FAR, NEAR};

/// Port 80 of the cluster IPs, which is the service's.
fn vip(port: u16) -> BTreeSet<ServiceAddress> {
    let ips: [IpAddr; 2] = [VIP.into(), VIP6.into()];
    let both = [Protocol::Tcp, Protocol::Udp];
    let at = |address, protocol| ServiceAddress { address, port, protocol };
    ips.into_iter().flat_map(|ip| both.map(|protocol| at(ip, protocol))).collect()
}

/// A connection through the service to the backend on the other node: IPv6 or not, TCP or not.
const SHAPES: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

fn connection((six, tcp): (bool, bool)) -> Service {
    service(six, tcp, (FAR4, SIX_FAR), true)
}

fn out(packet: Packet) -> Vec<u8> {
    geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, &packet.bytes())
}

fn back(packet: Packet) -> Vec<u8> {
    geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, &packet.bytes())
}

/// OVS forwards a packet of each direction.
fn through_ovs(world: &World, of: &Service) {
    world.through_ovs(&of.asked.bytes(), &out(of.asked_after));
    world.delivered_by_ovs(&back(of.answered), &of.answered_after.bytes());
}

/// Whether a packet of each direction is carried by the cache. If not it is as it came: not noted either.
fn carried(world: &World, of: &Service) -> [bool; 2] {
    let asked = world.sends(&of.asked.bytes()).packet;
    let answered = world.arrives(&back(of.answered)).packet;
    assert!(asked == of.asked.bytes() || asked == out(of.asked_after), "{:?}", world.reasons());
    assert!(answered == back(of.answered) || answered == of.answered_after.bytes(), "{:?}", world.reasons());
    [asked != of.asked.bytes(), answered != back(of.answered)]
}

fn entries(world: &World) -> Vec<Carried> {
    let mut list = Vec::new();
    world.cache.each_carried(&mut |entry| list.push(*entry)).unwrap();
    list
}

#[test]
fn a_service_that_is_kept_off_is_learned_in_neither_direction_and_counted_in_both() {
    World::both(|world| {
        world.cache.set_slow_services(&vip(80)).unwrap();
        assert_eq!(world.cache.slow_services().unwrap(), vip(80));
        for shape in SHAPES {
            let of = connection(shape);
            through_ovs(&world, &of);
            let before = world.count(Reason::ServiceSlow);
            for _ in 0..3 {
                assert_eq!(carried(&world, &of), [false, false], "{shape:?}: {:?}", world.reasons());
            }
            assert_eq!(world.count(Reason::ServiceSlow), before + 6, "{shape:?}: {:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
        let entries = entries(&world);
        assert_eq!(entries.len(), 8);
        assert!(entries.iter().all(|entry| entry.slow && entry.amount.packets == 3), "{entries:?}");
        let flows = world.cache.flows(20).unwrap();
        assert!(flows.len() == 8 && flows.iter().all(|flow| flow.slow && !flow.valid), "{flows:?}");
        // The gate is shut and opened by what does not know of services.
        world.cache.set_gate(Default::default()).unwrap();
        world.cache.set_gate(OPEN).unwrap();
        world.cache.invalidate().unwrap();
        let of = connection(SHAPES[0]);
        through_ovs(&world, &of);
        assert_eq!(carried(&world, &of), [false, false], "{:?}", world.reasons());
    });
}

#[test]
fn other_services_other_ports_and_pods_are_cached_as_before() {
    World::both(|world| {
        world.cache.set_slow_services(&vip(81)).unwrap();
        for shape in SHAPES {
            let of = connection(shape);
            through_ovs(&world, &of);
            assert_eq!(carried(&world, &of), [true, true], "{shape:?}: {:?}", world.reasons());
        }
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!(world.count(Reason::ServiceSlow), 0);
        // Of the other protocol it is another service.
        let only: BTreeSet<_> = vip(80).into_iter().filter(|a| a.protocol == Protocol::Tcp).collect();
        world.cache.set_slow_services(&only).unwrap();
        world.cache.invalidate().unwrap();
        for (shape, fast) in SHAPES.into_iter().zip([true, false, true, false]) {
            let of = connection(shape);
            through_ovs(&world, &of);
            assert_eq!(carried(&world, &of), [fast; 2], "{shape:?}: {:?}", world.reasons());
        }
    });
}

#[test]
fn a_service_leaves_the_cache_and_comes_back_and_others_keep_their_entries() {
    World::both(|world| {
        learn(&world, UDP);
        for shape in SHAPES {
            let of = connection(shape);
            through_ovs(&world, &of);
            assert_eq!(carried(&world, &of), [true, true], "{shape:?}: {:?}", world.reasons());
        }
        let mut seen = Vec::new();
        world.cache.set_slow_services(&vip(80)).unwrap();
        assert_eq!(world.cache.end_misplaced(&mut |entry| seen.push(*entry)).unwrap(), 8);
        assert!(seen.len() == 8 && seen.iter().all(|e| !e.slow && e.amount.packets == 1), "{seen:?}");
        assert!(entries(&world).is_empty());
        for shape in SHAPES {
            let of = connection(shape);
            // The first packets are noted.
            through_ovs(&world, &of);
            assert_eq!(carried(&world, &of), [false, false], "{shape:?}: {:?}", world.reasons());
        }
        assert_eq!(world.cache.end_misplaced(&mut |_| ()).unwrap(), 0, "what is kept off is in its place");
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        world.cache.set_slow_services(&BTreeSet::new()).unwrap();
        assert_eq!(world.cache.end_misplaced(&mut |_| ()).unwrap(), 8);
        for shape in SHAPES {
            let of = connection(shape);
            through_ovs(&world, &of);
            assert_eq!(carried(&world, &of), [true, true], "{shape:?}: {:?}", world.reasons());
        }
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!(world.count(Reason::Diverged), 0);
    });
}

#[test]
fn an_entry_that_nobody_ended_when_its_service_came_back_lasts_until_its_deadline() {
    World::both(|world| {
        let refresh = |ms| Timing { refresh: Duration::from_millis(ms), ..Timing::default() };
        world.cache.set_timing(refresh(100)).unwrap();
        world.cache.set_slow_services(&vip(80)).unwrap();
        let of = connection(SHAPES[0]);
        through_ovs(&world, &of);
        world.cache.set_slow_services(&BTreeSet::new()).unwrap();
        thread::sleep(Duration::from_millis(150));
        world.cache.set_timing(refresh(60_000)).unwrap();
        through_ovs(&world, &of);
        assert_eq!(world.count(Reason::Overdue), 2, "{:?}", world.reasons());
        assert_eq!(carried(&world, &of), [true, true], "{:?}", world.reasons());
    });
}

#[test]
fn what_a_flow_carried_goes_on_in_the_next_epoch_and_a_sweep_sees_it_last() {
    World::both(|world| {
        let of = connection(SHAPES[1]);
        let packets = |list: &[Carried]| {
            let mut packets: Vec<u64> = list.iter().map(|entry| entry.amount.packets).collect();
            packets.sort_unstable();
            packets
        };
        through_ovs(&world, &of);
        assert_eq!(carried(&world, &of), [true, true], "{:?}", world.reasons());
        let learned: Vec<u32> = entries(&world).iter().map(|entry| entry.learned).collect();
        world.cache.invalidate().unwrap();
        through_ovs(&world, &of);
        assert_eq!(carried(&world, &of), [true, true], "{:?}", world.reasons());
        let now = entries(&world);
        assert_eq!(packets(&now), [2, 2]);
        assert!(now.iter().all(|entry| learned.contains(&entry.learned)), "{learned:?} {now:?}");
        // Another backend: another count.
        let mut moved = connection(SHAPES[1]);
        moved.asked_after.four.1 = [10, 244, 1, 9];
        moved.answered.four.0 = [10, 244, 1, 9];
        world.cache.invalidate().unwrap();
        through_ovs(&world, &moved);
        let now = entries(&world);
        assert_eq!(packets(&now), [0, 0, 2], "the answers of the old backend are of another flow");
        let mut seen = Vec::new();
        world.cache.invalidate().unwrap();
        let swept = world.cache.sweep_seeing(&mut |entry| seen.push(*entry)).unwrap();
        assert_eq!((swept.removed, packets(&seen)), (3, vec![0, 0, 2]));
    });
}
