//! Every way of a connection: it is answered, and where there is a flow cache it carries both directions on every node.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::admin::{Amount, CachedProtocol, ServiceTraffic};
use serde_json::{Value, json};

use crate::demo::echoes::PORT;
use crate::demo::ways::{Scene, Way, carried};
use crate::harness::Checks;
use testbed::cluster::Bed;

/// Round trips of a connection.
const COUNT: u64 = 1000;

/// Both protocols by every way. `ebpf`: there is a flow cache.
pub(crate) fn check(bed: &Bed, ebpf: bool, checks: &mut Checks) -> Result<()> {
    let scene = Scene::set(bed)?;
    for way in scene.ways() {
        for udp in [false, true] {
            let what = format!("{}, {} over {}", way.what, if udp { "UDP" } else { "TCP" }, family(way));
            checks.check(what, one(bed, &scene, way, udp, ebpf).map_err(|e| format!("{e:#}")));
        }
        let what = format!("{}, {TRANSFERS} x {SIZE} bytes both ways over {}", way.what, family(way));
        checks.check(what, transfers(bed, &scene, way, ebpf).map_err(|e| format!("{e:#}")));
    }
    scene.clear()
}

fn family(way: &Way) -> &'static str {
    if way.to.is_ipv6() { "IPv6" } else { "IPv4" }
}

/// Large messages, and how many.
const SIZE: u64 = 200_000;
const TRANSFERS: u64 = 40;

/// Aggregates in both directions: they arrive, and where there is a flow cache it carries most of them.
fn transfers(bed: &Bed, scene: &Scene<'_>, way: &Way, ebpf: bool) -> Result<String> {
    let count = || way.nodes.iter().map(|node| carried(bed, node)).collect::<Result<Vec<u64>>>();
    let before = if ebpf { count()? } else { Vec::new() };
    let seen = scene.transfers(way, TRANSFERS, SIZE)?;
    let mut text = format!("{} answers, {} lost", seen.answers, seen.lost);
    ensure!(seen.answers == TRANSFERS && seen.lost == 0, "{text}");
    if ebpf {
        let after = count()?;
        let packets: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
        text += &format!("; the flow cache carried {packets:?} packets on {:?}", way.nodes);
        // Two directions, and not more than 1,500 bytes in a packet: 268 packets a round trip. Whatever else is invalidated, most of it.
        ensure!(packets.iter().all(|packets| *packets > TRANSFERS * SIZE * 2 / 1500 / 2), "{text}");
    }
    Ok(text)
}

/// Entries that nothing uses may be gone so long after the last packet; an emulated machine takes longer to ask for them.
const SWEPT: Duration = Duration::from_secs(2);
/// Times that a way is tried when the cache was invalidated meanwhile, as it is when something changes on the node.
const TRIES: usize = 5;

fn one(bed: &Bed, scene: &Scene<'_>, way: &Way, udp: bool, ebpf: bool) -> Result<String> {
    // The first packets; OVN may have to find a next hop.
    scene.round_trips(way, udp, 1)?;
    if !ebpf {
        let seen = scene.round_trips(way, udp, COUNT)?;
        let text = format!("{} answers, {} lost", seen.answers, seen.lost);
        ensure!(seen.answers > 100, "{text}");
        return Ok(text);
    }
    let mut tried = 1;
    loop {
        let changes = changes_on(bed, way)?;
        let mut since = Instant::now();
        let outcome = carries(bed, scene, way, udp, &mut since);
        let is_swept = since.elapsed() > SWEPT;
        if outcome.is_ok() || tried == TRIES || (changes == changes_on(bed, way)? && !is_swept) {
            return outcome;
        }
        tried += 1;
    }
}

fn changes_on(bed: &Bed, way: &Way) -> Result<Vec<Value>> {
    way.nodes.iter().map(|node| changes(bed, node)).collect()
}

/// How often entries of a node's flow cache ended by a change: it differs when some did in between.
pub(crate) fn changes(bed: &Bed, node: &str) -> Result<Value> {
    let cache = bed.agent(node).status()?["cache"].take();
    Ok(json!([cache["epoch"], cache["scopedChanges"]]))
}

/// `since` becomes the end of the traffic.
fn carries(bed: &Bed, scene: &Scene<'_>, way: &Way, udp: bool, since: &mut Instant) -> Result<String> {
    let count = || way.nodes.iter().map(|node| carried(bed, node)).collect::<Result<Vec<u64>>>();
    let before = count()?;
    let seen = scene.round_trips(way, udp, COUNT)?;
    *since = Instant::now();
    let after = count()?;
    let carried: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
    let text = format!(
        "{} answers, {} lost; the flow cache carried {carried:?} packets on {:?}",
        seen.answers, seen.lost, way.nodes
    );
    ensure!(seen.answers > 100, "{text}");
    // Both directions; only the first packets and the refreshes go through OVS.
    ensure!(carried.iter().all(|packets| *packets > seen.answers * 3 / 2), "{text}");
    // Entries of TCP go with their connection.
    if way.port != PORT && udp {
        shown(bed, way, seen.answers).with_context(|| text.clone())?;
    }
    Ok(text)
}

/// Whether the node where a service's address is translated shows the packets as that service's, in both directions.
fn shown(bed: &Bed, way: &Way, answers: u64) -> Result<()> {
    let node = way.nodes[0];
    let services: Vec<ServiceTraffic> = bed.agent(node).slipctl_json(&["services"])?;
    let cluster_ip = SocketAddr::new(way.to, way.port).to_string();
    let addresses = [cluster_ip, format!("node port {}", way.port)];
    let of = services.iter().filter(|s| s.protocol == CachedProtocol::Udp && addresses.contains(&s.address));
    let mut backends =
        of.filter(|s| s.service.starts_with("shop/way-")).flat_map(|service| &service.backends);
    let most = |amount: Amount| amount.packets > answers / 2;
    ensure!(
        backends.any(|backend| most(backend.to_backend) && most(backend.from_backend)),
        "slipctl services on {node} does not show them: {services:?}"
    );
    Ok(())
}
