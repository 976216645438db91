//! Every pair of sides of the bridges: pods, tunnel, outside, the node's two ports.

use std::time::Duration;

use ebpf::layout::flow::AGREEING;
use node_agent::{
    bpf::{Passed, Reason, Verdict},
    flow_cache::{FlowCache, Timing},
};

use super::{
    translation::{Packet, assert_sums},
    world::{FAR_POD, FAR_ROUTER, FAR_UPLINK, OTHER, POD, ROUTER, SIX_FAR, SIX_NEAR, UPLINK, World, geneve},
};
use crate::packets::{FAR, NEAR};

/// A router outside of the cluster.
const GATEWAY: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 1];
/// The management port.
const MANAGEMENT: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 2];

/// Where packets enter OVS and come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Pod,
    OtherPod,
    Tunnel,
    Outside,
    Bridge,
    Management,
    /// A station of a physical network, without a VLAN tag.
    Physical,
}

const ENDS: [End; 6] = [End::Pod, End::OtherPod, End::Tunnel, End::Outside, End::Bridge, End::Management];

impl End {
    /// Source and destination MAC of what enters.
    fn entering(self) -> ([u8; 6], [u8; 6]) {
        match self {
            Self::Pod => (POD, ROUTER),
            Self::OtherPod => (OTHER, ROUTER),
            Self::Tunnel => (FAR_ROUTER, FAR_POD),
            Self::Outside => (GATEWAY, UPLINK),
            Self::Bridge => (UPLINK, GATEWAY),
            Self::Management => (MANAGEMENT, ROUTER),
            Self::Physical => (GATEWAY, POD),
        }
    }

    /// MACs of what leaves by this end: what enters in the other direction is its answer.
    fn leaving(self) -> ([u8; 6], [u8; 6]) {
        let (source, destination) = self.entering();
        (destination, source)
    }

    /// The packet on the wire, where there is a tunnel.
    pub(super) fn wire(self, packet: &[u8], enters: bool) -> Vec<u8> {
        match (self, enters) {
            (Self::Tunnel, true) => geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, 0, packet),
            (Self::Tunnel, false) => geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, 0, packet),
            _ => packet.to_vec(),
        }
    }

    pub(super) fn enter(self, world: &World, packet: &[u8]) -> Passed {
        let (program, ifindex) = match self {
            Self::Pod => ("from_pod", world.pods[0]),
            Self::OtherPod => ("from_pod", world.pods[1]),
            Self::Tunnel | Self::Outside => ("from_uplink", world.uplink),
            Self::Bridge => ("from_host", world.node[0]),
            Self::Management => ("from_host", world.node[1]),
            Self::Physical => ("from_physical", world.physical[0]),
        };
        world.pass(program, &self.wire(packet, true), ifindex, 0)
    }

    pub(super) fn leave(self, world: &World, packet: &[u8], entered: &Passed) -> Passed {
        let (program, ifindex) = match self {
            Self::Pod => ("to_pod", world.from_ovs[0]),
            Self::OtherPod => ("to_pod", world.from_ovs[1]),
            Self::Tunnel | Self::Outside => ("to_uplink", world.uplink_from_ovs),
            Self::Bridge => ("to_host", world.node[0]),
            Self::Management => ("to_host", world.node[1]),
            Self::Physical => ("to_physical", world.physical[0]),
        };
        world.comes_out(program, &self.wire(packet, false), ifindex, entered)
    }
}

type Address = ([u8; 4], [u8; 16]);

fn address(last: u8) -> Address {
    let mut six = SIX_FAR;
    six[15] = last;
    ([192, 0, 2, last], six)
}

/// The source that the programs know of a pod's port.
fn own(end: End, other: Address) -> Address {
    let mut six = SIX_NEAR;
    match end {
        End::Pod => ([10, 244, 0, 3], six),
        End::OtherPod => {
            six[15] = 4;
            ([10, 244, 0, 4], six)
        }
        _ => other,
    }
}

/// What OVS translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nat {
    None,
    Destination,
    Source,
    Both,
}

/// A connection between two ends: the packets of both directions, before and after OVS.
pub(super) struct Connection {
    pub(super) asked: Packet,
    pub(super) asked_after: Packet,
    pub(super) answered: Packet,
    pub(super) answered_after: Packet,
}

pub(super) fn connection(from: End, to: End, nat: Nat, six: bool, tcp: bool) -> Connection {
    let (client, server) = (own(from, address(10)), own(to, address(20)));
    let asked_for = if matches!(nat, Nat::Destination | Nat::Both) { address(30) } else { server };
    let shown = if matches!(nat, Nat::Source | Nat::Both) { address(40) } else { client };
    let (port, seen_port) = if asked_for == server { (8_080, 8_080) } else { (80, 8_080) };
    let (source_port, shown_port) = if shown == client { (40_000, 40_000) } else { (40_000, 50_001) };
    let packet = |macs, a: Address, b: Address, ports, ttl| Packet {
        macs,
        four: (a.0, b.0),
        six: six.then_some((a.1, b.1)),
        ports,
        ttl,
        tcp,
        payload: 30,
    };
    Connection {
        asked: packet(from.entering(), client, asked_for, (source_port, port), 64),
        asked_after: packet(to.leaving(), shown, server, (shown_port, seen_port), 63),
        answered: packet(to.entering(), server, shown, (seen_port, shown_port), 64),
        answered_after: packet(from.leaving(), asked_for, client, (port, source_port), 63),
    }
}

fn pairs() -> impl Iterator<Item = (End, End)> {
    let all = ENDS.into_iter().flat_map(|from| ENDS.into_iter().map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

#[test]
fn every_pair_of_ends_is_learned_and_repeated_byte_for_byte() {
    World::both(|world| {
        let interposed = world.from_ovs != world.pods;
        let mut cases = 0;
        for (from, to) in pairs() {
            for (nat, six, tcp) in
                [Nat::None, Nat::Destination, Nat::Source, Nat::Both].into_iter().flat_map(|nat| {
                    [(nat, false, false), (nat, true, false), (nat, false, true), (nat, true, true)]
                })
            {
                // In interposed mode each of these packets may be another one: several answers have to agree.
                let answers = if nat == Nat::Both && !tcp && interposed { 1 + AGREEING } else { 1 };
                world.cache.invalidate().unwrap();
                world.cache.heartbeat().unwrap();
                let what = format!("{from:?} to {to:?}, {nat:?}, IPv6 {six}, TCP {tcp}");
                let Connection { asked, asked_after, answered, answered_after } =
                    connection(from, to, nat, six, tcp);
                for _ in 0..answers {
                    let entered = from.enter(&world, &asked.bytes());
                    let out = to.leave(&world, &asked_after.bytes(), &entered);
                    assert_eq!(out.packet, to.wire(&asked_after.bytes(), false), "{what}: as it was");
                    let entered = to.enter(&world, &answered.bytes());
                    from.leave(&world, &answered_after.bytes(), &entered);
                }
                for payload in [1, 500] {
                    let of = |packet: Packet| Packet { payload, ..packet }.bytes();
                    let directions = [(from, asked, to, asked_after), (to, answered, from, answered_after)];
                    for (one, before, other, after) in directions {
                        let passed = one.enter(&world, &of(before));
                        assert_eq!(
                            passed.packet,
                            other.wire(&of(after), false),
                            "{what}, from {one:?}: {:?}",
                            world.reasons()
                        );
                        assert_eq!(passed.verdict, Verdict::Redirect, "{what}");
                        let inside = if other == End::Tunnel { 58 } else { 0 };
                        assert_sums(&passed.packet[inside..], &what);
                    }
                }
                cases += 1;
            }
        }
        assert_eq!(cases, 30 * 16);
        assert_eq!(world.count(Reason::Diverged), 0, "{:?}", world.reasons());
    });
}

/// Where the packet carries the number of its note, one that OVS held back until its slot had another owner, with the same length and the same
/// first bytes, could be taken for the owner's when OVS has changed both ends of it.
#[test]
fn udp_of_which_both_ends_are_translated_is_carried_when_answers_agree_and_no_other_came_between() {
    World::run(true, |world| {
        let Connection { asked, asked_after, .. } =
            connection(End::Outside, End::Tunnel, Nat::Both, false, false);
        // Another flow's: it comes out with the number of a packet of this one.
        let held = Packet { four: ([10, 244, 0, 99], asked_after.four.1), ..asked_after };
        let timing = Timing { refresh: Duration::from_secs(1), ..Timing::default() };
        world.cache.set_timing(timing).unwrap();
        let passes = |out: &Packet| {
            let entered = End::Outside.enter(&world, &asked.bytes());
            let fast = entered.packet == End::Tunnel.wire(&asked_after.bytes(), false);
            if !fast {
                End::Tunnel.leave(&world, &out.bytes(), &entered);
            }
            fast
        };
        let counts =
            || [Reason::Learned, Reason::Disagreed, Reason::Diverged].map(|reason| world.count(reason));
        for _ in 0..AGREEING {
            assert!(!passes(&asked_after));
        }
        assert_eq!(counts(), [1, 0, 0]);
        assert!(!passes(&held), "the last one of those that must agree");
        assert_eq!(counts(), [1, 1, 0]);
        for _ in 0..=AGREEING {
            assert!(!passes(&asked_after), "{:?}", world.reasons());
        }
        assert!(passes(&asked_after) && passes(&asked_after), "{:?}", world.reasons());
        assert_eq!(counts(), [2, 1, 0]);
        // The packet that refreshes the entry may meet one too: the entry goes, and neither OVS nor the port is blamed.
        std::thread::sleep(Duration::from_millis(1_200));
        assert!(!passes(&held));
        assert_eq!((world.count(Reason::Probe), counts()), (1, [2, 2, 0]));
        assert!(!passes(&asked_after), "{:?}", world.reasons());
    });
}

#[test]
fn traffic_of_the_gateway_goes_slow_without_its_path_and_pods_do_not() {
    World::both(|world| {
        world.cache.set_gateway(None).unwrap();
        for (from, to) in pairs() {
            let Connection { asked, asked_after, .. } = connection(from, to, Nat::None, false, false);
            world.cache.invalidate().unwrap();
            let entered = from.enter(&world, &asked.bytes());
            to.leave(&world, &asked_after.bytes(), &entered);
            let again = from.enter(&world, &asked.bytes());
            let inner = |end| matches!(end, End::Pod | End::OtherPod | End::Tunnel);
            let fast = again.packet == to.wire(&asked_after.bytes(), false);
            assert_eq!(fast, inner(from) && inner(to), "{from:?} to {to:?}: {:?}", world.reasons());
        }
    });
}

#[test]
fn what_is_on_the_uplink_for_another_station_or_longer_than_it_takes_goes_to_ovs() {
    World::both(|world| {
        let Connection { asked, asked_after, .. } =
            connection(End::Outside, End::Bridge, Nat::None, false, false);
        let stranger = Packet { macs: (GATEWAY, FAR_UPLINK), ..asked };
        let entered = End::Outside.enter(&world, &stranger.bytes());
        End::Bridge.leave(&world, &Packet { ttl: 63, ..stranger }.bytes(), &entered);
        assert_eq!((world.count(Reason::Learned), world.count(Reason::OtherDestination)), (0, 1));
        let _ = asked_after;
        let Connection { asked, asked_after, .. } =
            connection(End::Bridge, End::Outside, Nat::None, false, false);
        let entered = End::Bridge.enter(&world, &asked.bytes());
        End::Outside.leave(&world, &asked_after.bytes(), &entered);
        for (payload, too_long) in [(1_472, 0), (1_473, 1)] {
            End::Bridge.enter(&world, &Packet { payload, ..asked }.bytes());
            assert_eq!(world.count(Reason::TooLong), too_long, "{payload}: {:?}", world.reasons());
        }
    });
}

#[test]
fn the_kernels_tunnels_and_processes_with_a_priority_send_by_the_bridge_as_they_did() {
    World::run(false, |world| {
        // The number of the note of what is inside goes on to the uplink.
        let inner = connection(End::Pod, End::Tunnel, Nat::None, false, false);
        let entered = End::Pod.enter(&world, &inner.asked.bytes());
        let geneve = End::Tunnel.wire(&inner.asked_after.bytes(), false);
        let passed = world.pass("from_host", &geneve, world.node[0], entered.tag);
        assert_eq!((passed.verdict, passed.tag, passed.packet), (Verdict::Pass, entered.tag, geneve.clone()));
        let passed = world.pass("from_host", &geneve, world.node[0], 0);
        assert_eq!((passed.verdict, passed.tag), (Verdict::Pass, 0));
        // The programs on the uplink count it.
        assert_eq!(world.count(Reason::TunnelPacket), 0);
        // A queue may look at it.
        let own = connection(End::Bridge, End::Outside, Nat::None, false, false).asked.bytes();
        let passed = world.pass("from_host", &own, world.node[0], 6);
        assert_eq!((passed.verdict, passed.tag), (Verdict::Pass, 6));
        assert_eq!(world.count(Reason::PriorityTaken), 1);
    });
}
