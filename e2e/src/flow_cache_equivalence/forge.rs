//! A pod sends a tunnel packet of its own making to a node: UDP to the tunnels' port, with the network and the port key of a pod there,
//! and in it a packet from an unassigned address. It leaves with its node's address, so the other node would take it for a packet of
//! that node. It must not leave the node, by no path that the pod can choose. The same bytes on the wire, which are the node's own
//! there, do arrive.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::bytes::gather;
use super::cases::{Addresses, Case, Kind};
use super::frame::Packet;
use super::scene::{Scene, Who, mac};
use super::tap::Tap;
use super::tunnel::{GENEVE_PORT, geneve, on_wire};
use super::warm_up::{Caches, learn};
use crate::harness::Checks;
use testbed::cluster::config::{node_ip, underlay_ip6};
use testbed::tools::packets::{Frame, Offload};

/// Number of the flow that tells the network and the port keys, and of the forged one.
const KNOWN: u16 = 560;
const FORGED: u16 = 561;
/// Copies of each packet.
const COPIES: u64 = 5;
/// An unassigned address (RFC 5737).
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 66));
/// Until what passes has come.
const SETTLE: Duration = Duration::from_millis(200);
/// All are from a to b.
const KIND: Kind = Kind { udp: true, six: false, far: true };

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let addresses = Addresses::of(scene);
    let known = Case::flow(KIND, KNOWN);
    learn(scene, &addresses, &[&known])?;
    let [_, into] = addresses.keys(KIND, KNOWN);
    let caches = Caches::read(scene)?;
    let flow = caches.flow(1, &into).context("the cache does not know the flow")?;
    let tunnel = flow.tunnel().context("the flow is in no tunnel")?;
    let there = addresses.pair(KIND, FORGED).there;
    let macs = addresses.delivered(KIND);
    let inner = Packet { id: Case::id(FORGED), macs, ttl: 63, source: NOBODY, ..there.clone() };
    let payload = geneve(tunnel, &inner.frame().bytes);

    let program = scene.bed.config().program("testbed");
    let wire = |scene: &Scene<'_>, node: usize| {
        Tap::start(scene.bed.host("switch").network_command(&program)?, &scene.nodes[node], false)
    };
    let mut second = wire(scene, 1)?;
    let control = Frame { bytes: on_wire(&payload)?, offload: Offload::default() };
    scene.forget();
    second.send(vec![control], Duration::from_millis(1))?;
    thread::sleep(SETTLE);
    let came = gather(scene).get(&FORGED).map_or(0, |seen| seen.count());
    let outcome = if came == 1 { Ok("arrives".to_owned()) } else { Err(format!("{came} came")) };
    checks.check("a tunnel packet with a source that nobody has, on the wire", outcome);

    let first = wire(scene, 0)?;
    let router = there.macs[0];
    let own = mac(scene.member(Who::A).ipv4);
    // The node's own port on the pods' switch, through which the node would forward.
    let node_port = [router[0], router[1], router[2], router[3], router[4], 2];
    let a = (IpAddr::V4(scene.member(Who::A).ipv4), scene.member(Who::A).ipv6);
    let [ip, ip6] = [IpAddr::V4(node_ip(2)), IpAddr::V6(underlay_ip6(node_ip(2)))];
    for (what, station, source, to) in [
        ("to the node's IPv4 address", router, a.0, ip),
        ("to the node's IPv6 address", router, a.1, ip6),
        ("to the node's IPv4 address, by this node's own port", node_port, a.0, ip),
        ("to this node's IPv4 address", router, a.0, IpAddr::V4(node_ip(1))),
    ] {
        let ports = [40_000, GENEVE_PORT];
        let macs = [station, own];
        let upper = there.upper.clone();
        let packet = Packet { payload: payload.clone(), ..Packet::new(macs, source, to, ports, upper) };
        scene.forget();
        drop(first.take());
        let frames = vec![packet.frame(); usize::try_from(COPIES)?];
        scene.tap(Who::A)?.send(frames, Duration::from_millis(5))?;
        thread::sleep(SETTLE);
        let came = gather(scene).get(&FORGED).map_or(0, |seen| seen.count());
        // Translated or not, the frame inside is the same.
        let inside = &payload[payload.len() - 40..];
        let left = first
            .take()
            .iter()
            .filter(|seen| seen.frame.bytes.windows(inside.len()).any(|part| part == inside))
            .count();
        let text = format!("{left} of {COPIES} left the node, {came} came to a pod");
        let outcome = if left == 0 && came == 0 { Ok(text) } else { Err(text) };
        checks.check(format_args!("a tunnel packet from a pod {what}"), outcome);
    }
    let mut diverged = 0;
    for node in 0..2 {
        diverged += scene.reason(node, "diverged")?;
    }
    let outcome = if diverged == 0 { Ok(String::new()) } else { Err(format!("{diverged} times")) };
    checks.check("nobody diverged", outcome);
    Ok(())
}
