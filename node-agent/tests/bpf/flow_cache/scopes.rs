//! Changes that concern some scopes: entries of these end, nothing is learned in them while they are closed, and others go on.

use std::net::IpAddr;

use ebpf::layout::scope;
use node_agent::{
    bpf::Reason,
    flow_cache::{Action, Flow, FlowCache, ScopeChange},
};

use super::world::{Shape, TCP, UDP, World, is_fast, learn, learn_back};

fn address(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => scope::address4(u32::from_ne_bytes(address.octets())),
        IpAddr::V6(address) => {
            let bytes = address.octets();
            scope::address6([0, 4, 8, 12].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())))
        }
    }
}

fn mac(api::MacAddr([a, b, c, d, e, f]): api::MacAddr) -> u32 {
    scope::mac(u16::from_ne_bytes([a, b]).into(), u32::from_ne_bytes([c, d, e, f]))
}

/// The scopes of a flow, with names; `port`: the pod's host veth.
fn scopes(flow: &Flow, port: u32) -> Vec<(&'static str, u32)> {
    let (vni, option) = match flow.action {
        Action::Tunnel { vni, option, .. } | Action::Deliver { vni, option, .. } => (vni, option),
        Action::Local { .. } => panic!("no tunnel"),
    };
    vec![
        ("source", address(flow.source)),
        ("destination", address(flow.destination)),
        ("sender's MAC", mac(flow.source_mac)),
        ("receiver's MAC", mac(flow.delivered_destination_mac)),
        ("port", scope::port(port)),
        ("datapath", scope::datapath(vni)),
        ("ingress key", scope::key(vni, option >> 16)),
        ("egress key", scope::key(vni, option & 0xffff)),
    ]
}

fn change(world: &World, bucket: u32, closed: bool) {
    let change = ScopeChange { buckets: vec![(bucket, closed)], closing: closed };
    world.cache.change_scopes(&change).unwrap();
}

fn flow(world: &World) -> Flow {
    let mut flows = world.cache.flows(10).unwrap();
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows.remove(0)
}

#[test]
fn an_entry_ends_with_a_change_of_each_of_its_scopes_and_is_learned_when_the_scope_opens() {
    World::both(|world| {
        for shape in [UDP, Shape { six: true, ..UDP }] {
            world.cache.invalidate().unwrap();
            world.cache.sweep().unwrap();
            learn(&world, shape);
            for (name, bucket) in scopes(&flow(&world), world.pods[0]) {
                assert!(is_fast(&world, shape), "{name}: {:?}", world.reasons());
                change(&world, bucket, true);
                assert!(!flow(&world).valid && !flow(&world).current, "{name}");
                assert!(!is_fast(&world, shape), "{name}");
                let closed = world.count(Reason::ScopeClosed);
                learn(&world, shape);
                assert!(!is_fast(&world, shape), "{name}: learned while the scope is closed");
                assert_eq!(world.count(Reason::ScopeClosed), closed + 1, "{name}");
                change(&world, bucket, false);
                assert!(!is_fast(&world, shape), "{name}: of what was learned before");
                learn(&world, shape);
                assert!(is_fast(&world, shape), "{name}: {:?}", world.reasons());
                assert!(flow(&world).valid);
            }
            // What is delivered, too.
            let (geneve, delivered) = shape.back();
            world.cache.invalidate().unwrap();
            world.cache.sweep().unwrap();
            world.delivered_by_ovs(&geneve, &delivered);
            for (name, bucket) in scopes(&flow(&world), world.pods[0]) {
                assert!(flow(&world).valid, "{name}");
                let stale = world.count(Reason::ScopeChanged);
                change(&world, bucket, false);
                assert!(!flow(&world).valid, "{name}");
                world.delivered_by_ovs(&geneve, &delivered);
                assert_eq!(world.count(Reason::ScopeChanged), stale + 1, "{name}");
            }
        }
    });
}

#[test]
fn a_change_elsewhere_costs_an_entry_nothing() {
    World::both(|world| {
        learn(&world, UDP);
        let own: Vec<u32> =
            scopes(&flow(&world), world.pods[0]).into_iter().map(|(_, bucket)| bucket).collect();
        for number in 0..300_u32 {
            let bucket = address(IpAddr::from([10, 9, 0, u8::try_from(number % 250).unwrap()]));
            if !own.contains(&bucket) {
                change(&world, bucket, number % 2 == 0);
            }
            assert!(is_fast(&world, UDP), "{number}: {:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::ScopeChanged), 0);
        // And it is refreshed meanwhile, as learning goes on.
        change(&world, address(IpAddr::from([10, 9, 9, 9])), true);
        let other = Shape { six: true, ..UDP };
        learn(&world, other);
        assert!(is_fast(&world, other), "{:?}", world.reasons());
    });
}

#[test]
fn a_packet_that_entered_before_a_change_of_its_scope_teaches_nothing() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        for (bucket, learned) in
            [(address(IpAddr::from([10, 244, 1, 3])), false), (address(IpAddr::from([10, 9, 9, 9])), true)]
        {
            let entered = world.sends(&sent);
            change(&world, bucket, false);
            world.comes_out("to_uplink", &geneve, world.uplink_from_ovs, &entered);
            assert_eq!(is_fast(&world, UDP), learned, "{:?}", world.reasons());
        }
        assert_eq!(world.count(Reason::NoteOldScope), 1);
    });
}

#[test]
fn both_directions_of_tcp_must_be_of_scopes_as_they_are() {
    World::both(|world| {
        learn(&world, TCP);
        learn_back(&world, TCP);
        assert!(is_fast(&world, TCP));
        change(&world, address(IpAddr::from([10, 244, 1, 3])), false);
        learn(&world, TCP);
        assert!(!is_fast(&world, TCP), "the answers were seen before the change: {:?}", world.reasons());
        learn_back(&world, TCP);
        assert!(is_fast(&world, TCP), "{:?}", world.reasons());
    });
}

#[test]
fn another_answer_after_a_change_of_the_scope_is_no_divergence() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        learn(&world, UDP);
        change(&world, address(IpAddr::from([10, 244, 1, 3])), false);
        let mut other = geneve;
        // Another VNI.
        other[48] = 33;
        world.through_ovs(&sent, &other);
        assert_eq!(world.count(Reason::Diverged), 0);
        let Action::Tunnel { vni, .. } = flow(&world).action else { panic!("no tunnel") };
        assert_eq!(vni, 33);
    });
}

#[test]
fn scopes_that_an_agent_left_closed_are_opened_by_the_next_one() {
    World::both(|world| {
        let bucket = address(IpAddr::from([10, 244, 1, 3]));
        change(&world, bucket, true);
        learn(&world, UDP);
        assert!(!is_fast(&world, UDP));
        let next = node_agent::bpf::PinnedCache::open(std::sync::Arc::clone(&world.datapath)).unwrap();
        next.open_scopes().unwrap();
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
    });
}
