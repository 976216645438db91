//! What ends leaves the maps, and what a sweep says of them.

use std::{sync::Barrier, thread, time::Duration};

use node_agent::flow_cache::{FlowCache, Pressure, Timing};

use crate::packets::patched;

use super::world::{Shape, TCP, UDP, World, is_fast, learn, learn_back};

const SIX: Shape = Shape { six: true, ..UDP };

fn entries(maps: &[Pressure], name: &str) -> u64 {
    maps.iter().find(|map| map.map == name).unwrap().entries
}

#[test]
fn a_sweep_removes_what_is_of_another_epoch_leaves_the_rest_and_counts_it() {
    World::both(|world| {
        for shape in [UDP, TCP, SIX] {
            learn(&world, shape);
            learn_back(&world, shape);
        }
        let before = world.cache.pressure().unwrap();
        let maps = ["FLOWS", "FLOWS6"];
        assert_eq!(maps.map(|map| entries(&before, map)), [4, 2], "{:?}", world.reasons());
        let swept = world.cache.sweep().unwrap();
        assert_eq!((swept.removed, swept.maps), (0, before), "all are in use");
        world.cache.invalidate().unwrap();
        learn(&world, UDP);
        let swept = world.cache.sweep().unwrap();
        assert_eq!(swept.removed, 5);
        assert_eq!(maps.map(|map| entries(&swept.maps, map)), [1, 0]);
        assert_eq!(swept.maps, world.cache.pressure().unwrap(), "what it says is what is there");
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
    });
}

#[test]
fn a_sweep_removes_what_nobody_used_for_long_after_its_deadline() {
    World::both(|world| {
        let refresh = |ms| Timing { refresh: Duration::from_millis(ms), ..Timing::default() };
        world.cache.set_timing(refresh(60_000)).unwrap();
        learn(&world, SIX);
        world.cache.set_timing(refresh(20)).unwrap();
        learn(&world, UDP);
        assert_eq!(world.cache.sweep().unwrap().removed, 0);
        // The refresh, and a second after it in which the next packet would still ask for an answer.
        thread::sleep(Duration::from_millis(1_200));
        let swept = world.cache.sweep().unwrap();
        assert_eq!((swept.removed, entries(&swept.maps, "FLOWS")), (1, 0));
        assert_eq!(entries(&swept.maps, "FLOWS6"), 1);
        assert!(is_fast(&world, SIX), "{:?}", world.reasons());
    });
}

#[test]
fn a_sweep_goes_on_when_an_entry_is_gone_before_it_comes_to_it() {
    const FLOWS: u16 = 800;
    World::run(false, |world| {
        for port in 1000..1000 + FLOWS {
            if port.is_multiple_of(200) {
                // What one pod may have noted in an eighth of a second is over.
                thread::sleep(Duration::from_millis(140));
            }
            let (sent, geneve) = UDP.out();
            // Another source port, and no UDP checksum.
            let sent = patched(patched(sent, 34, &port.to_be_bytes()), 40, &[0, 0]);
            let geneve = patched(patched(geneve, 58 + 34, &port.to_be_bytes()), 58 + 40, &[0, 0]);
            world.through_ovs(&sent, &geneve);
        }
        let before = entries(&world.cache.pressure().unwrap(), "FLOWS");
        assert_eq!(before, u64::from(FLOWS), "{:?}", world.reasons());
        world.cache.invalidate().unwrap();
        // Another sweep, at the same time.
        let begin = Barrier::new(2);
        let sweep = || {
            begin.wait();
            world.cache.sweep()
        };
        let both = thread::scope(|scope| {
            let other = thread::Builder::new().spawn_scoped(scope, sweep).unwrap();
            [sweep(), other.join().unwrap()]
        });
        let both = both.map(Result::unwrap);
        assert_eq!(both.iter().map(|swept| swept.removed).sum::<u64>(), before);
        assert_eq!(entries(&world.cache.pressure().unwrap(), "FLOWS"), 0);
    });
}
