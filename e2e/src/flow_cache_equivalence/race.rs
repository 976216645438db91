//! A packet that entered OVS before a change and leaves it after it must not teach: what it says is what OVS said before.
//!
//! Packets are held in two places. *Before* OVS's verdict: ovs-vswitchd is stopped (SIGSTOP) with packets in its sockets; it is
//! not there to tell of flows, so that the change comes by the database, which another process serves. *After* the verdict: a
//! queue (tbf, two bytes a millisecond: a packet in 54 ms, all within the 250 ms that a note counts) behind OVS's end of the
//! uplink's shim, while everybody lives and a flow changes.

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::bytes::gather;
use super::cases::{self, Addresses, Case, Kind};
use super::frame::Packet;
use super::scene::{Scene, Who};
use super::warm_up::{Caches, herald, learn};
use crate::harness::Checks;
use testbed::exec;
use testbed::tools::load::now;
use testbed::ui::say;

/// Numbers of the flows.
const STOPPED: RangeInclusive<u16> = 600..=607;
const HELD: RangeInclusive<u16> = 608..=615;
const STREAM: RangeInclusive<u16> = 616..=623;
const FIRST: RangeInclusive<u16> = 624..=631;
const FILLER: u16 = 632;
/// All are from a to b.
const KIND: Kind = Kind { udp: true, six: false, far: true };
/// OVS's end of the uplink's shim, by which its tunnel packets leave.
const QUEUE: &str = "so-eth0";
/// Until OVS has carried out a change of its flows, in nanoseconds.
const ENFORCED: u64 = 50_000_000;
/// What comes after the change, and the time between two of them. Longer together than OVS takes for revalidation (500 ms).
const LATER: u16 = 40;
const PAUSE: Duration = Duration::from_millis(20);
const QUICK: Duration = Duration::from_millis(1);
/// Until learning is on again after a change of which OVS tells nothing more: 20 ms and a margin, and well under the 250 ms that a note
/// counts.
const ON_AGAIN: Duration = Duration::from_millis(60);

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let mut outcome = None;
    for number in STOPPED {
        // Whatever happens in a cluster may have kept the node from noting anything just then.
        outcome = stopped(scene, number)?;
        if outcome.is_some() {
            break;
        }
    }
    let outcome = outcome.unwrap_or_else(|| Err(OFF.to_owned()));
    checks.check("stopped before OVS's verdict, and a port changed: nothing is learned", outcome);
    for (numbers, (count, first_is_out), what) in [
        (HELD, (1, false), "one packet"),
        (STREAM, (3, false), "three packets of a flow"),
        (FIRST, (3, true), "two packets of a flow whose first one taught"),
    ] {
        let mut outcome = None;
        for number in numbers {
            outcome = held(scene, number, count, first_is_out)?;
            if outcome.is_some() {
                break;
            }
        }
        let never = || Err(OFF.to_owned());
        let (taught, passed) = outcome.unwrap_or_else(|| (never(), never()));
        checks.check(
            format_args!("{what} held behind OVS's verdict, and a flow changed: nothing is learned"),
            taught,
        );
        checks.check(
            format_args!("{what} held behind OVS's verdict: what is denied then does not pass"),
            passed,
        );
    }
    Ok(())
}

fn packets(
    addresses: &Addresses,
    number: u16,
    first: u16,
    count: u16,
) -> Vec<testbed::tools::packets::Frame> {
    let there = addresses.pair(KIND, number).there;
    (first..first + count).map(|id| Packet { id: Case::id(number) + id, ..there.clone() }.frame()).collect()
}

/// Whether the sender's node has an entry for a flow.
fn known(scene: &Scene<'_>, addresses: &Addresses, number: u16) -> Result<bool> {
    let [out, _] = addresses.keys(KIND, number);
    Ok(Caches::read(scene)?.flow(0, &out).is_some_and(|flow| flow.valid))
}

/// How often everything that the node knows was made invalid. The status would not do: it asks OVS too.
fn bumps(scene: &Scene<'_>) -> Result<u64> {
    scene.agent(0)?.metrics()?.sum("slipstream_node_fastpath_bumps_total", &[])
}

/// How many packets came while nothing might be learned, and so left no note.
fn unnoted(scene: &Scene<'_>) -> Result<u64> {
    scene.agent(0)?.metrics()?.sum("slipstream_node_packet_reasons_total", &[("reason", "learning_off")])
}

fn command(scene: &Scene<'_>, program: &str, args: &[&str]) -> Result<()> {
    exec::output(scene.bed.host(&scene.nodes[0]).command(program)?.args(args)).map(drop)
}

/// Waits until it was once more, but not for long: what is held must still be held then.
fn moved(scene: &Scene<'_>, from: u64) -> Result<()> {
    for _ in 0..10 {
        if bumps(scene)? > from {
            break;
        }
        thread::sleep(QUICK);
    }
    Ok(())
}

/// Waits until what changed before has been dealt with: the last step comes when OVS has revalidated its flows.
fn calm(scene: &Scene<'_>) -> Result<()> {
    let mut last = bumps(scene)?;
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(1000));
        let now = bumps(scene)?;
        if now == last {
            break;
        }
        last = now;
    }
    scene.open()
}

/// Held before the verdict; nothing if the packets were not noted.
fn stopped(scene: &mut Scene<'_>, number: u16) -> Result<Option<Outcome>> {
    let addresses = Addresses::of(scene);
    calm(scene)?;
    let node = scene.nodes[0].clone();
    let processes = scene.bed.host(&node).processes()?;
    let pid = processes.iter().find(|one| one.name == "ovs-vswitchd").and_then(|one| one.pid);
    let pid = pid.context("ovs-vswitchd does not run")?.to_string();
    let (before, old, off) = (bumps(scene)?, scene.reason(0, OLD)?, unnoted(scene)?);
    scene.forget();
    command(scene, "kill", &["-STOP", &pid])?;
    let mut refused = 0;
    let mut held = || -> Result<()> {
        scene.tap(Who::A)?.send(packets(&addresses, number, 0, 5), QUICK)?;
        scene.bed.vsctl(&node, &["--no-wait", "set", "Port", QUEUE, "other_config:exact=1"])?;
        moved(scene, before)?;
        // These enter after the change, and must not stand in for the first. OVS tells nothing while it is stopped, so that learning
        // is on again 20 ms after the change, and what is noted then may teach.
        scene.tap(Who::A)?.send(packets(&addresses, number, 5, 5), Duration::ZERO)?;
        refused = unnoted(scene)?.saturating_sub(off);
        // What comes out while learning is off does not meet the epoch.
        thread::sleep(ON_AGAIN);
        Ok(())
    };
    let began = now();
    let done = held();
    command(scene, "kill", &["-CONT", &pid])?;
    let took = (now() - began) / 1_000_000;
    done?;
    thread::sleep(Duration::from_millis(100));
    let came = gather(scene).get(&number).map_or(0, |seen| seen.count());
    let taught = known(scene, &addresses, number)?;
    let old = scene.reason(0, OLD)?.saturating_sub(old);
    scene.bed.vsctl(&node, &["--no-wait", "remove", "Port", QUEUE, "other_config", "exact"])?;
    // The same flow is learned when nothing is in the way.
    let mut later = false;
    for _ in 0..3 {
        learn(scene, &addresses, &[&Case::flow(KIND, number)])?;
        later = known(scene, &addresses, number)?;
        if later {
            break;
        }
        // It was, and the last step of dealing with the changes came in between.
    }
    let text = format!(
        "{came} packets came after {took} ms, {OLD} {old}, learned {taught}, learned later {later}, {refused} met learning off"
    );
    if refused != 5 || (old == 0 && !taught) {
        say(format_args!("not noted, or too late, tried again: {text}"));
        return Ok(None);
    }
    Ok(Some(if came == 10 && !taught && later { Ok(text) } else { Err(text) }))
}

/// When nothing was learned each time for another reason than the one that is tried, so that nothing was shown.
const OFF: &str =
    "nothing was shown: each time learning was off, as after every change, or the machine was slow";
/// How the programs call it.
const OLD: &str = "note_old_epoch";

type Outcome = Result<String, String>;

/// Held behind the verdict: whether something was learned, and whether something passed that OVS denies. Nothing if the packets
/// were not noted, or came out too early or too late.
///
/// `first_is_out`: the change comes when the first one is out.
fn held(
    scene: &mut Scene<'_>,
    number: u16,
    count: u16,
    first_is_out: bool,
) -> Result<Option<(Outcome, Outcome)>> {
    let addresses = Addresses::of(scene);
    let node = scene.nodes[0].clone();
    // OVS has resolved the tunnel's remote, and the receiver's node is idle.
    learn(scene, &addresses, &[&Case::flow(KIND, FILLER)])?;
    let port = addresses.keys(KIND, number)[0].source.port();
    let flow = format!("table=0,priority=65535,udp,tp_src={port}");
    let bridge = "unix:/run/openvswitch/br-int.mgmt";
    command(
        scene,
        "tc",
        &[
            "qdisc", "replace", "dev", QUEUE, "root", "tbf", "rate", "16kbit", "burst", "1600", "limit",
            "100000",
        ],
    )?;
    // The queue is a change of the port as well.
    calm(scene)?;
    let (before, old, fast) = (bumps(scene)?, scene.reason(0, OLD)?, scene.sent_fast(0)?);
    let mut unfit = false;
    let mut act = || -> Result<u64> {
        // One packet is held long enough for learning to be on again, three not too long for a note.
        fill(scene, &addresses, if count == 1 { 3 } else { 2 })?;
        let mut frames = vec![herald(&addresses.pair(KIND, number).there)];
        frames.extend(packets(&addresses, number, 0, count));
        scene.forget();
        let off = unnoted(scene)?;
        scene.tap(Who::A)?.send(frames, QUICK)?;
        unfit = unnoted(scene)? > off;
        for _ in 0..10 {
            if !first_is_out || known(scene, &addresses, number)? {
                break;
            }
            thread::sleep(QUICK);
        }
        scene.bed.ovs(&node, "ovs-ofctl", &["add-flow", bridge, &format!("{flow},actions=drop")])?;
        let changed = now();
        moved(scene, before)?;
        scene.tap(Who::A)?.send(packets(&addresses, number, 10, LATER), PAUSE)?;
        Ok(changed)
    };
    let changed = act();
    command(scene, "tc", &["qdisc", "del", "dev", QUEUE, "root"])?;
    thread::sleep(Duration::from_millis(100));
    let arrivals = scene.member(Who::B).tap.take();
    let taught = known(scene, &addresses, number)?;
    let old = scene.reason(0, OLD)?.saturating_sub(old);
    let fast = scene.sent_fast(0)?.saturating_sub(fast);
    scene.bed.ovs(&node, "ovs-ofctl", &["--strict", "del-flows", bridge, &flow])?;
    let changed = changed?;
    let mine = || arrivals.iter().filter(|one| cases::number(&one.frame.bytes) == Some(number));
    let held = || mine().filter(|one| !is_later(&one.frame.bytes, number));
    let (first, early) = (held().count(), held().filter(|one| one.at <= changed).count());
    let late = mine().filter(|one| is_later(&one.frame.bytes, number) && one.at > changed + ENFORCED);
    let last = late.clone().map(|one| (one.at - changed) / 1_000_000).max().unwrap_or_default();
    let late = late.count();
    let learned =
        format!("{first} of {count} held came, {early} before the change, {OLD} {old}, learned {taught}");
    let passed = format!(
        "{late} of {LATER} denied packets came, until {last} ms after the change; {fast} packets past OVS"
    );
    // OVS itself may pass them until it has revalidated, however long that takes on a busy machine.
    if taught || (late > 0 && fast > 0) {
        return Ok(Some((if taught { Err(learned) } else { Ok(learned) }, Err(passed))));
    }
    let as_meant =
        if first_is_out { (1..usize::from(count)).contains(&early) } else { early == 0 && old > 0 };
    if unfit || first != usize::from(count) || !as_meant || late > 0 {
        say(format_args!("not as it was meant, tried again: {learned}, {passed}, learning off {unfit}"));
        return Ok(None);
    }
    Ok(Some((Ok(learned), Ok(passed))))
}

/// Uses up what the queue lets through at once.
fn fill(scene: &mut Scene<'_>, addresses: &Addresses, small: usize) -> Result<()> {
    let there = addresses.pair(KIND, FILLER).there;
    let large = Packet { payload: vec![0; 1300], ..there.clone() };
    // It does not use the cache, which sends past the queue.
    let slow = |packet: Packet| Packet { options: vec![1, 1, 1, 0], ..packet }.frame();
    let small = (0..small).map(|_| slow(there.clone()));
    let frames = std::iter::once(slow(large)).chain(small).collect();
    scene.tap(Who::A)?.send(frames, QUICK)?;
    thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// Whether it was sent after the change.
fn is_later(bytes: &[u8], number: u16) -> bool {
    let id = bytes.get(18..20).map_or(0, |id| u16::from_be_bytes([id[0], id[1]]));
    id >= Case::id(number) + 10
}
