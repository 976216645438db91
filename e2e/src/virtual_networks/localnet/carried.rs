//! What the flow cache carries on a physical network: with OVS's datapath in the kernel everything, with the one in user space nothing.

use std::net::IpAddr;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use testbed::cluster::Bed;
use testbed::cluster::config::OvsDatapath;
use testbed::exec;
use testbed::traffic::Place;

use super::super::life::eventually;
use super::super::scene::RED;
use super::fabric::{self, HOST};
use super::{BACKUP, NODES, OTHERS, OUTSIDE, PODS, STORAGE, address, place};
use crate::demo::echoes::{self, Echo, PORT};
use crate::demo::ways::carried;
use crate::harness::Checks;
use crate::objects::Objects;

/// Round trips of a flow.
const COUNT: u64 = 500;
/// Before a flow is looked at again that was not carried.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a flow goes on that nothing ends.
const GOES_ON: Duration = Duration::from_secs(20);
/// How long it may go on when it is dropped.
const BOUND: Duration = Duration::from_secs(1);
/// How long until a flow is carried.
const SETTLED: Duration = Duration::from_secs(30);

/// Flows of every kind, and what the agents say of the interfaces.
pub(super) fn check(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let fast = red.bed.config().ovs_datapath == OvsDatapath::System;
    if fast {
        of_kernel(red, checks)?;
    }
    let what = if fast { "are fast" } else { "stay on OVS" };
    for node in NODES {
        checks.check(
            format!("{node}: interfaces on a physical network {what}, all others are fast"),
            paths(red.bed, node, fast),
        );
    }
    Ok(())
}

/// With OVS's datapath in the kernel: what is carried, and what ends it.
pub(super) fn of_kernel(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    flows(red, checks)?;
    checks.check("a flow of the bridge ends what it drops", dropped(red).map_err(|e| format!("{e:#}")));
    mirrored(red, checks)
}

/// Who asks whom.
struct Way {
    what: String,
    from: Place,
    to: IpAddr,
    /// Nodes whose flow caches carry it.
    nodes: Vec<&'static str>,
}

fn ways(red: &Objects<'_>, six: bool) -> Result<Vec<Way>> {
    let outside: IpAddr = OUTSIDE[usize::from(six)].parse()?;
    let way = |from: &str, what: &str, to, nodes: &[&'static str]| -> Result<Way> {
        let from = if from == HOST { Place::Host(HOST.into()) } else { place(from)? };
        let family = if six { "IPv6" } else { "IPv4" };
        Ok(Way { what: format!("{from} to {what} over {family}"), from, to, nodes: nodes.to_vec() })
    };
    Ok(vec![
        way("d1", "d2 on the same node", address(red, "d2", six)?, &["n1"])?,
        way("d1", "d3 on the other node", address(red, "d3", six)?, &["n1", "n2"])?,
        way("d1", "the outside host", outside, &["n1"])?,
        way(HOST, "d3", address(red, "d3", six)?, &["n2"])?,
    ])
}

fn flows(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let bed = red.bed;
    let _echoes = [
        Echo::at(bed, &place("d2")?)?,
        Echo::at(bed, &place("d3")?)?,
        Echo::at(bed, &Place::Host(HOST.into()))?,
    ];
    for six in [false, true] {
        for way in ways(red, six)? {
            for (kind, udp, count, size) in
                [("TCP", false, COUNT, 64), ("UDP", true, COUNT, 64), ("long messages", false, 40, 20_000)]
            {
                let what = format!("{}, {kind}, is carried", way.what);
                let done = is_carried(bed, &way, udp, count, size);
                checks.check(what, done.map_err(|e| format!("{e:#}")));
            }
        }
    }
    Ok(())
}

fn is_carried(bed: &Bed, way: &Way, udp: bool, count: u64, size: u32) -> Result<String> {
    let Way { from, to, nodes, .. } = way;
    let counted = || nodes.iter().map(|node| carried(bed, node)).collect::<Result<Vec<u64>>>();
    let begin = Instant::now();
    loop {
        let before = counted()?;
        let mut asking = echoes::client(bed, from)?;
        asking.args(["--count", &count.to_string(), "--seconds", "20", "--size", &size.to_string()]);
        asking.args(udp.then_some("--udp")).args([to.to_string(), PORT.to_string()]);
        let seen = echoes::round_trips(&exec::output(&mut asking)?)?;
        let packets: Vec<u64> =
            counted()?.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
        let text = format!(
            "{} answers, {} lost; the flow cache carried {packets:?} packets on {nodes:?}",
            seen.answers, seen.lost
        );
        ensure!(seen.answers > count / 2, "{text}");
        if packets.iter().all(|packets| *packets > seen.answers * 3 / 2) {
            return Ok(text);
        }
        ensure!(begin.elapsed() < exec::patient(SETTLED), "{text}");
        thread::sleep(AGAIN);
    }
}

/// The administrator's flow takes effect, by the monitor of the bridge and not by the next refresh, and the other way round.
fn dropped(red: &Objects<'_>) -> Result<String> {
    let bed = red.bed;
    let _echo = Echo::at(bed, &Place::Host(HOST.into()))?;
    let to: IpAddr = OUTSIDE[0].parse()?;
    let told = || -> Result<u64> {
        let status = bed.agent("n1").status()?;
        Ok(status["cache"]["scopedChanges"]["physical_flows"].as_u64().unwrap_or_default())
    };
    let before = told()?;
    let mut asking = echoes::client(bed, &place("d1")?)?;
    asking.args(["--udp", "--count", "1000000", "--pause", "5", "--timeout", "500", "--give-up", "8"]);
    asking.args(["--seconds", &exec::patient(GOES_ON).as_secs().to_string()]);
    let (began, running) = (Instant::now(), asking.args([to.to_string(), PORT.to_string()]));
    let running = running.stdout(Stdio::piped()).spawn().context("cannot start the client")?;
    thread::sleep(exec::patient(Duration::from_secs(2)));
    fabric::drop_udp(bed, "n1", to)?;
    let added = began.elapsed();
    let said = String::from_utf8(running.wait_with_output()?.stdout)?;
    let heard = told()?.saturating_sub(before);
    fabric::let_udp(bed, "n1")?;
    let seen = echoes::round_trips(&said)?;
    let late = Duration::from_millis(seen.last_answer_ms).saturating_sub(added);
    let text = format!(
        "{} answers, the last one {late:.2?} after the flow was added; {heard} changes of the bridge's flows",
        seen.answers
    );
    ensure!(seen.answers > 20 && late < exec::patient(BOUND) && heard > 0, "{text}");
    let way = Way { what: String::new(), from: place("d1")?, to, nodes: vec!["n1"] };
    let again = is_carried(bed, &way, true, COUNT, 64)?;
    Ok(format!("{text}; without it {again}"))
}

/// A mirror on the bridge gets every packet: nothing goes past it while it is there.
fn mirrored(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let bed = red.bed;
    let path = |word: &str| {
        eventually(|| {
            let status = bed.agent("n1").status()?;
            let all = status["endpoints"].as_array().context("no endpoints")?;
            let d1 = all.iter().find(|one| one["pod"] == format!("{RED}/d1/net1"));
            let said = d1.context("no such endpoint")?.to_string();
            ensure!(said.contains(word), "{said}");
            Ok(said)
        })
    };
    fabric::mirror(bed, "n1")?;
    checks.check("a mirror of the bridge takes its pods off the flow cache", path("it has mirrors"));
    fabric::unmirror(bed, "n1")?;
    checks.check("without it they are on again", path(r#""path":"ebpf""#));
    Ok(())
}

/// Who is on the physical network has that path, with the reason where it is slow, and changes of flows end what they concern alone.
fn paths(bed: &Bed, node: &str, fast: bool) -> Result<String, String> {
    eventually(|| {
        let status = bed.agent(node).status()?;
        let counters = bed.agent(node).counters()?;
        let mut there = 0;
        for one in status["endpoints"].as_array().context("no endpoints")? {
            let name = one["pod"].as_str().unwrap_or_default();
            let is_there = PODS.iter().chain(&OTHERS).any(|(pod, _)| name == format!("{RED}/{pod}/net1"));
            let is_told = one["reason"].as_str().is_some_and(|reason| reason.contains("localnet"));
            let slow = is_there && !fast;
            ensure!(is_told == slow && (one["path"] == "ovs") == slow, "{one}");
            there += u32::from(is_there);
        }
        ensure!(there == 3, "{there} interfaces");
        for one in counters["endpoints"].as_array().context("no counters of interfaces")? {
            let is_there = [STORAGE, BACKUP].iter().any(|name| one["network"] == format!("{RED}/{name}"));
            let packets = |way: &str, path: &str| one[way][path]["packets"].as_u64().unwrap_or_default();
            let carried = packets("in", "fast") + packets("out", "fast");
            ensure!(!is_there || fast || (carried == 0 && packets("out", "slow") > 0), "{one}");
        }
        ensure!(status["cache"]["unscopedReason"] == "", "{}", status["cache"]["unscopedReason"]);
        ensure!(status["cache"]["divergences"] == 0, "{}", status["cache"]["divergences"]);
        Ok(format!("{there} interfaces"))
    })
}
