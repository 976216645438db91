//! The XDP program on the uplink: the same bytes and counts as the TC program, for every flow that enters and leaves by the uplink.

use std::os::fd::AsRawFd as _;

use nix::{
    net::if_::if_nametoindex,
    sys::socket::{LinkAddr, MsgFlags, recvfrom, send},
};
use node_agent::{
    bpf::{
        Given, Mode, Options, Passed, PortCounters, Programs, Reason, TunnelCounters, TunnelKey, Verdict,
        XdpWanted,
    },
    flow_cache::FlowCache,
};

use super::{
    sides::{Connection, End, Nat, connection},
    translation::{Packet, assert_sums},
    world::World,
};
use crate::{forwarder::open, sandbox::eventually};

pub(super) const NATIVE: Options = Options {
    udp_at_once: true,
    xdp: XdpWanted::Native,
    xdp_drops: false,
    log_malformed: false,
    without_tcx: false,
    pod_mtu: 0,
    flows: 0,
    ipv6_only: false,
    without_counters: false,
};

/// In both attach modes.
pub(super) fn both(test: impl Fn(World) + Send + Clone + 'static) {
    for interposed in [false, true] {
        let test = test.clone();
        World::run_with(interposed, NATIVE, test);
    }
}

/// `packet` comes from the wire, in front of the kernel.
pub(super) fn arrives(world: &World, packet: &[u8]) -> Passed {
    world.lock().pass_xdp(Given { packet, ifindex: world.uplink, tag: 0, gso_size: 0 }).unwrap()
}

/// OVS has both directions of a connection, and the cache has learned them.
pub(super) fn learned(world: &World, from: End, to: End, nat: Nat, six: bool, tcp: bool) -> Connection {
    world.cache.invalidate().unwrap();
    world.cache.heartbeat().unwrap();
    let connection = connection(from, to, nat, six, tcp);
    let Connection { asked, asked_after, answered, answered_after } = &connection;
    let entered = from.enter(world, &asked.bytes());
    to.leave(world, &asked_after.bytes(), &entered);
    let entered = to.enter(world, &answered.bytes());
    from.leave(world, &answered_after.bytes(), &entered);
    if tcp {
        // The first packet after both directions were seen finds that out.
        from.enter(world, &asked.bytes());
        to.enter(world, &answered.bytes());
    }
    connection
}

type Counted = (PortCounters, Vec<(TunnelKey, TunnelCounters)>, Vec<(u64, u64)>);

/// What the uplink, the tunnels and the flows have counted.
fn counted(world: &World) -> Counted {
    let programs = world.lock();
    let (uplink, mut tunnels) = (programs.uplink_stats().unwrap(), programs.tunnel_stats().unwrap());
    tunnels.sort_by_key(|(key, _)| *key);
    drop(programs);
    let mut flows = world.cache.flows(100).unwrap();
    flows.sort_by_key(|flow| (flow.source, flow.destination, flow.source_port, flow.destination_port));
    (uplink, tunnels, flows.iter().map(|flow| (flow.packets, flow.bytes)).collect())
}

/// The differences of all numbers in two counts.
fn grown(before: &Counted, after: &Counted) -> Vec<u64> {
    let numbers = |counted: &Counted| {
        let (port, tunnels, flows) = counted;
        let mut counts = vec![port.slow_from, port.slow_to, port.fast_from, port.fast_to];
        counts.extend(tunnels.iter().flat_map(|(_, t)| [t.slow_rx, t.slow_tx, t.fast_rx, t.fast_tx]));
        let counts = counts.into_iter().map(|count| (count.packets, count.bytes));
        counts.chain(flows.iter().copied()).flat_map(|(a, b)| [a, b]).collect::<Vec<_>>()
    };
    numbers(after).into_iter().zip(numbers(before)).map(|(after, before)| after - before).collect()
}

#[test]
fn xdp_sends_what_the_tc_program_sends_and_counts_what_it_counts() {
    both(|world| {
        let interposed = world.from_ovs != world.pods;
        let mut cases = 0;
        for nat in [Nat::None, Nat::Destination, Nat::Source, Nat::Both] {
            for (six, tcp) in [(false, false), (true, false), (false, true), (true, true)] {
                if nat == Nat::Both && !tcp && interposed {
                    continue;
                }
                for (from, to) in [(End::Outside, End::Tunnel), (End::Tunnel, End::Outside)] {
                    let Connection { asked, asked_after, answered, answered_after } =
                        learned(&world, from, to, nat, six, tcp);
                    let what = format!("{from:?} to {to:?}, {nat:?}, IPv6 {six}, TCP {tcp}");
                    for payload in [18, 19, 500, 1_300] {
                        let of = |packet: Packet| Packet { payload, ..packet }.bytes();
                        for (one, before, other, after) in
                            [(from, asked, to, asked_after), (to, answered, from, answered_after)]
                        {
                            let packet = one.wire(&of(before), true);
                            let wanted = other.wire(&of(after), false);
                            let start = counted(&world);
                            let passed = arrives(&world, &packet);
                            assert_eq!(passed.verdict, Verdict::SentBack, "{what}: {:?}", world.reasons());
                            assert!(passed.packet == wanted, "{what}:\n{:x?}\n{wanted:x?}", passed.packet);
                            let by_xdp = counted(&world);
                            let refused = world.count(Reason::RoomRefused);
                            let by_tc = world.arrives(&packet);
                            if world.count(Reason::RoomRefused) > refused {
                                // Before Linux 6.3 a TC program cannot take IPv6 out of an IPv4 tunnel for a network card.
                                assert!(six && one == End::Tunnel, "{what}");
                                cases += 1;
                                continue;
                            }
                            assert!(by_tc.packet == wanted, "{what}: {:?}", world.reasons());
                            let end = counted(&world);
                            assert_eq!(grown(&start, &by_xdp), grown(&by_xdp, &end), "{what}");
                            let inside = if other == End::Tunnel { 58 } else { 0 };
                            assert_sums(&passed.packet[inside..], &what);
                            cases += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(cases, if interposed { 14 } else { 16 } * 2 * 4 * 2);
        assert_eq!(world.count(Reason::XdpForwarded), cases);
        assert_eq!(world.count(Reason::DroppedChanged) + world.count(Reason::Diverged), 0);
    });
}

#[test]
fn the_checksum_of_udp_stays_out_where_there_is_none() {
    World::run_with(false, NATIVE, |world| {
        let Connection { asked, .. } = learned(&world, End::Outside, End::Tunnel, Nat::Both, false, false);
        let mut packet = asked.bytes();
        packet[40..42].fill(0);
        let passed = arrives(&world, &packet);
        assert_eq!(passed.verdict, Verdict::SentBack);
        assert_eq!(passed.packet, world.arrives(&packet).packet);
        assert_eq!(passed.packet[58 + 40..58 + 42], [0, 0]);
    });
}

/// A frame goes in at the other end of the uplink, and what comes back is seen there.
#[test]
fn a_frame_that_comes_by_a_veth_is_sent_back_by_it_in_native_mode() {
    both(|world| {
        // A veth hands over what a program sends back only where the other end has a program too (`veth_xdp_flush` in
        // drivers/net/veth.c). That of another agent, whose gate is closed, lets everything pass.
        let other = world.lock().dir().with_file_name("other");
        let mut others = Programs::load_with(&other, Options { flows: 64, ..NATIVE }).unwrap();
        others.set_uplink(if_nametoindex("upx").unwrap(), Mode::Direct).unwrap();
        let Connection { asked, asked_after, answered, answered_after } =
            learned(&world, End::Outside, End::Tunnel, Nat::Both, false, true);
        let wire = open("upx");
        for (packet, wanted) in [
            (asked.bytes(), End::Tunnel.wire(&asked_after.bytes(), false)),
            (End::Tunnel.wire(&answered.bytes(), true), answered_after.bytes()),
        ] {
            let before = world.count(Reason::XdpForwarded);
            assert_eq!(send(wire.as_raw_fd(), &packet, MsgFlags::empty()), Ok(packet.len()));
            let mut frame = [0; 2_048];
            let back = eventually(|| {
                recvfrom::<LinkAddr>(wire.as_raw_fd(), &mut frame)
                    .is_ok_and(|(length, _)| frame[..length] == wanted)
            });
            assert!(back, "{:?}", world.reasons());
            assert_eq!(world.count(Reason::XdpForwarded), before + 1);
        }
    });
}
