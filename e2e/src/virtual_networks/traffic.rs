//! Trials of suite `virtual_networks`: which pod reaches which, on which network.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::demo::echoes::{self, PORT};
use crate::demo::ways::carried;
use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::cluster::config::{EXT_IP, OUTSIDE_IP, node_ip};
use testbed::exec;
use testbed::tools::Answer;
use testbed::traffic::{self, Dial};

use super::scene::{NETWORKS, RED, Scene};

/// Where pods answer with their names.
const NAMED: u16 = 8080;
/// Round trips of a flow that the flow cache is to carry.
const COUNT: u64 = 500;
/// How long a route, a port, an answer or the flow cache takes after its pod runs.
const SETTLED: Duration = Duration::from_secs(20);
/// Before a flow is looked at again that was not carried.
const AGAIN: Duration = Duration::from_millis(200);

/// Every pair on every network: the right pod answers, sees the client's address there, and the flow cache carries what follows.
pub(super) fn matrix(scene: &Scene<'_>, ebpf: bool, checks: &mut Checks) -> Result<()> {
    for (network, _) in NETWORKS {
        for (to, way) in [("r2", "same node"), ("r3", "other node")] {
            for six in [false, true] {
                for udp in [false, true] {
                    let family = if six { "IPv6" } else { "IPv4" };
                    let protocol = if udp { "UDP" } else { "TCP" };
                    let what = format!("network {network}, {way}, {protocol} over {family}");
                    checks.check(what, one(scene, network, to, six, udp, ebpf).map_err(|e| format!("{e:#}")));
                }
            }
        }
    }
    if ebpf {
        for node in ["n1", "n2"] {
            let status = scene.bed().agent(node).status()?;
            let why = status["cache"]["unscopedReason"].as_str().map(str::to_owned);
            let scoped = match why.as_deref() {
                Some("") => Ok(String::new()),
                _ => Err(format!("{why:?}")),
            };
            checks.check(format!("{node}: a change of flows ends only the entries that it concerns"), scoped);
            for (network, _) in NETWORKS {
                let what = format!("{node}: packets of network {network} are counted");
                checks.check(what, counted(scene, node, network).map_err(|e| format!("{e:#}")));
            }
        }
    }
    Ok(())
}

/// The interfaces on a network have its name, and more packets by the flow cache than one flow has.
fn counted(scene: &Scene<'_>, node: &str, network: &str) -> Result<String> {
    let agent = scene.bed().agent(node);
    let name = format!("{RED}/{network}");
    let counters = agent.counters()?;
    let all = counters["endpoints"].as_array().context("no counters of interfaces")?;
    let fast = |one: &Value| one["in"]["fast"]["packets"].as_u64().unwrap_or_default();
    let on_it: Vec<u64> = all.iter().filter(|one| one["network"] == name.as_str()).map(fast).collect();
    let text = format!("{on_it:?} packets");
    ensure!(on_it.iter().sum::<u64>() > COUNT, "{text}");
    let label = format!("network=\"{name}\"");
    let named = agent.page("/metrics")?.lines().filter(|line| line.contains(&label)).count();
    ensure!(named == on_it.len(), "{text}, and {named} interfaces have {label} among the metrics");
    Ok(text)
}

fn one(scene: &Scene<'_>, network: &str, to: &str, six: bool, udp: bool, ebpf: bool) -> Result<String> {
    let (bed, client, server) = (scene.bed(), scene.pod("r1")?, scene.pod(to)?);
    let (from, address) = (client.address(network, six)?, server.address(network, six)?);
    let dial = if udp { Dial::udp(address, NAMED) } else { Dial::tcp(address, NAMED) };
    let expect = Expect::only(&format!("{to} {from}"));
    let (_, verdict) = expect::settle(bed, &client.place, dial.times(3), &expect, SETTLED);
    let text = verdict.map_err(anyhow::Error::msg)?;
    let nodes = if client.node == server.node { vec![client.node] } else { vec![client.node, server.node] };
    let count = || nodes.iter().map(|node| carried(bed, node)).collect::<Result<Vec<u64>>>();
    // The pods may be new, or something else of the node may have changed meanwhile.
    let begin = Instant::now();
    loop {
        let before = if ebpf { count()? } else { Vec::new() };
        let mut asking = echoes::client(bed, &client.place)?;
        asking.args(["--count", &COUNT.to_string(), "--seconds", "10", "--size", "64"]);
        asking.args(udp.then_some("--udp")).args([address.to_string(), PORT.to_string()]);
        let seen = echoes::round_trips(&exec::output(&mut asking)?)?;
        let text = format!("{text}; {} answers, {} lost", seen.answers, seen.lost);
        ensure!(seen.answers > COUNT / 2, "{text}");
        if !ebpf {
            return Ok(text);
        }
        let packets: Vec<u64> =
            count()?.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
        let text = format!("{text}; the flow cache carried {packets:?} packets on {nodes:?}");
        if packets.iter().all(|packets| *packets > seen.answers * 3 / 2) {
            return Ok(text);
        }
        ensure!(begin.elapsed() < SETTLED, "{text}");
        thread::sleep(AGAIN);
    }
}

/// The second tenant's network has the first one's range: only its own pods answer there.
pub(super) fn isolation(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, client) = (scene.bed(), scene.pod("g1")?);
    for six in [false, true] {
        let own = scene.pod("g2")?.address("own", six)?;
        let expect = Expect::only(&format!("g2 {}", client.address("own", six)?));
        let (_, verdict) =
            expect::settle(bed, &client.place, Dial::tcp(own, NAMED).times(3), &expect, SETTLED);
        checks.check(format!("{own} on the second tenant's network is its own pod"), verdict);
        for name in ["r1", "r2", "r3"] {
            for (network, _) in NETWORKS {
                let address = scene.pod(name)?.address(network, six)?;
                let what = format!("{address} of {name} on {network} is not reached from the other tenant");
                checks.check(what, not_reached(scene, address));
            }
        }
    }
    Ok(())
}

/// No pod of the first tenant answers; one of the second tenant may, which has the same address.
fn not_reached(scene: &Scene<'_>, address: IpAddr) -> Result<String, String> {
    let client = scene.pod("g1").map_err(|error| error.to_string())?;
    let dial = Dial::tcp(address, NAMED).within(Duration::from_millis(800));
    let attempts = traffic::dial(scene.bed(), &client.place, dial).map_err(|error| format!("{error:#}"))?;
    let is_foreign = |answer: &Answer| matches!(answer, Answer::Reply(text) if text.starts_with('r'));
    let text = traffic::summary(&attempts);
    if attempts.iter().any(|attempt| is_foreign(&attempt.answer)) { Err(text) } else { Ok(text) }
}

/// A pod whose default route is by the network that reaches the outside: the outside sees the address of its node,
/// and services go on by the first interface.
pub(super) fn outside(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let bed = scene.bed();
    let own = bed.config().program("testbed").display().to_string();
    bed.host("ext").start("server", &[&own, "probe", "serve", "--name", "outside", "--tcp", "9000"], &[])?;
    let client = scene.pod("r3")?;
    let route = exec::output(
        traffic::command(bed, &client.place, "ip".as_ref())?.args(["route", "show", "default"]),
    )?;
    let by = if route.contains("dev net3") { Ok(route.trim().to_owned()) } else { Err(route) };
    checks.check("the default route is by the third network's interface", by);
    let expect = Expect::only(&format!("outside {}", node_ip(2)));
    for (what, address) in
        [("beside the nodes", IpAddr::from(EXT_IP)), ("behind a router", OUTSIDE_IP.into())]
    {
        let (_, verdict) =
            expect::settle(bed, &client.place, Dial::tcp(address, 9000).times(6), &expect, SETTLED);
        checks.check(format!("to the outside {what}, with the address of its node"), verdict);
    }
    checks.check("services go on by its first interface", service(scene));
    let other = scene.pod("r1")?;
    let default =
        exec::output(traffic::command(bed, &other.place, "ip".as_ref())?.args(["route", "show", "default"]))?;
    let by = if default.contains("dev eth0") { Ok(default.trim().to_owned()) } else { Err(default) };
    checks.check("other pods keep theirs by the first interface", by);
    Ok(())
}

/// The pod with its default route elsewhere asks for a service of the cluster, and is seen by its address there.
fn service(scene: &Scene<'_>) -> Result<String, String> {
    let made = || {
        let object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": RED, "name": "named"},
            "spec": {"selector": {"app": "r1"}, "ports": [{"port": 80, "targetPort": NAMED}]},
        });
        scene.red.apply(object)?;
        let address: IpAddr = scene.red.field("service/named", ".spec.clusterIP")?.parse()?;
        let from = scene.red.field("pod/r3", ".status.podIP")?;
        anyhow::Ok((address, Expect::only(&format!("r1 {from}"))))
    };
    let (address, expect) = made().map_err(|error| format!("{error:#}"))?;
    let client = scene.pod("r3").map_err(|error| error.to_string())?;
    expect::settle(scene.bed(), &client.place, Dial::tcp(address, 80).times(3), &expect, SETTLED).1
}
