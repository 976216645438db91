//! Mirrors of OVS, while flows are cached: what is copied must come to OVS, every packet. The entries of such flows end, the path says why,
//! copies have no number of the fast path in them, nothing is learned from a copy, and the packets arrive all the while. Without the
//! mirror the flows are fast again.

mod ovs;
mod trials;

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cases::{Addresses, Case, Kind};
use super::frame::Packet;
use super::pairs::header::{Word, ip};
use super::pairs::mark::Mark;
use super::scene::{NAMESPACE, Scene, Who};
use super::warm_up::{Caches, learn};
use crate::harness::Checks;
use ovs::{Copies, Port, set, unset};
use testbed::exec;
use testbed::tools::packets::Capture;
use trials::{Slow, TRIALS, Trial};

/// Numbers of the flows from a to c and to b; of TCP and UDP, each with both families.
const FIRST: u16 = 580;
/// How long the agent may take to follow the database.
const SOON: Duration = Duration::from_secs(5);
/// Until OVS has carried out the change of its database, too.
const ENFORCED: Duration = Duration::from_millis(400);
/// Packets of each flow while the mirror is there.
const COUNT: u8 = 20;
/// How often the flows are taught.
const LESSONS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);
const SETTLE: Duration = Duration::from_millis(150);

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    for trial in TRIALS {
        let port = Copies::add(scene, trial.bridge)?;
        let outcome = attempt(scene, trial, &port);
        // Also where something went wrong: the next one finds none.
        let removed = unset(scene, trial.bridge);
        port.remove(scene, trial.bridge)?;
        let outcome = outcome?;
        removed?;
        let name = format!("a mirror of {} on {}", trial.name, trial.bridge);
        checks.check(&name, outcome);
        checks.check(format_args!("{name}, and it is gone"), again(scene)?);
    }
    for reason in ["diverged", "several_out"] {
        let count = scene.reason(0, reason)? + scene.reason(1, reason)?;
        let outcome = if count == 0 { Ok(String::new()) } else { Err(format!("{count} times")) };
        checks.check(format_args!("nothing is counted as {reason}"), outcome);
    }
    Ok(())
}

/// The flows: UDP and TCP, both families, to the pod on this node and the one on the other.
fn flows() -> Vec<Case> {
    (FIRST..).zip(Kind::all()).map(|(number, kind)| Case::flow(kind, number)).collect()
}

/// The packets that are sent by a flow, each with what tells it from others.
fn packets(addresses: &Addresses, case: &Case) -> Vec<(Mark, Packet)> {
    let there = addresses.pair(case.kind, case.number).there;
    let flow = u8::try_from(case.number - FIRST).unwrap_or(u8::MAX);
    (0..COUNT)
        .map(|variant| {
            let mark = Mark { flow, back: false, variant };
            let id = 0x1000 + u16::from(variant);
            let label = Some(0x2_0000 + u32::from(variant));
            (mark, Packet { id, label, payload: mark.payload(64), ..there.clone() })
        })
        .collect()
}

/// Sets the mirror while all flows are cached; what came of it.
fn attempt(scene: &mut Scene<'_>, trial: &Trial, port: &Copies) -> Result<Result<String, String>> {
    let addresses = Addresses::of(scene);
    let list = flows();
    let cases: Vec<&Case> = list.iter().collect();
    if let Err(unknown) = known(scene, &addresses, &cases)? {
        return Ok(Err(unknown));
    }
    set(scene, trial)?;
    let said = exec::retry(SOON, trial.name, || is_slow(scene, trial))?;
    thread::sleep(ENFORCED);
    // From here on every packet comes to OVS.
    let (mut sent, mut missing) = (Vec::new(), Vec::new());
    let start = Caches::read(scene)?;
    scene.forget();
    drop(port.tap.take());
    for case in &cases {
        let packets = packets(&addresses, case);
        let frames = packets.iter().map(|(_, packet)| packet.frame()).collect();
        scene.tap(Who::A)?.send(frames, PAUSE)?;
        sent.push((*case, packets));
    }
    thread::sleep(SETTLE);
    let end = Caches::read(scene)?;
    let copies = if trial.output == Port::Copies { port.tap.take() } else { scene.member(Who::C).tap.take() };
    let arrived = [Who::C, Who::B].map(|who| scene.member(who).tap.take());
    let mut copied = 0;
    for (case, packets) in &sent {
        let concerned = trial.concerns(case.kind.far);
        if concerned {
            let [out, _] = addresses.keys(case.kind, case.number);
            if end.flow(0, &out).is_some_and(|flow| flow.valid) {
                return Ok(Err(format!("{}: there is an entry", case.name)));
            }
            let carried = start.carried(&end, 0, &out).unwrap_or_default();
            if carried > 0 {
                return Ok(Err(format!("{}: the cache carried {carried} packets", case.name)));
            }
        }
        // A port that gets copies gets nothing else, and the copies are all that comes to it.
        let at = if case.kind.far {
            Some(&arrived[1])
        } else {
            Some(&arrived[0]).filter(|_| trial.output == Port::Copies)
        };
        for (mark, packet) in packets {
            let sent = Word::sent(packet).context("no IP packet")?;
            if let Some(at) = at {
                let (count, leak) = look(at, *mark, sent);
                if let Some(leak) = leak {
                    return Ok(Err(format!("{}: {leak}", case.name)));
                }
                if count != 1 {
                    missing.push(format!("{} {}: {count}", case.name, mark.variant));
                }
            }
            let (count, leak) = look(&copies, *mark, sent);
            if let Some(leak) = leak {
                return Ok(Err(format!("{}: a copy: {leak}", case.name)));
            }
            let wanted = trial.copies[usize::from(case.kind.far)];
            if wanted && count == 0 {
                return Ok(Err(format!("{}: packet {} was not copied", case.name, mark.variant)));
            }
            copied += count;
        }
    }
    // OVS may lose some on a busy machine.
    if missing.len() > cases.len() {
        return Ok(Err(format!("did not arrive once: {}", missing.join(", "))));
    }
    Ok(Ok(format!("{said}; {copied} copies, none with a number")))
}

/// How many of the captures are of a packet, and whether one has another word than was sent.
fn look(captures: &[Capture], mark: Mark, sent: Word) -> (usize, Option<String>) {
    let of: Vec<&Capture> =
        captures.iter().filter(|one| Mark::find(&one.frame.bytes) == Some(mark)).collect();
    let words = of.iter().map(|one| ip(&one.frame.bytes).and_then(Word::of));
    let other = words.into_iter().find(|word| *word != Some(sent));
    (of.len(), other.map(|word| format!("{sent:x?} was sent, and {word:x?} came")))
}

/// Without the mirror the flows are fast again.
fn again(scene: &mut Scene<'_>) -> Result<Result<String, String>> {
    let addresses = Addresses::of(scene);
    let list = flows();
    let cases: Vec<&Case> = list.iter().collect();
    exec::retry(SOON, "all paths are fast again", || {
        let status = scene.agent(0)?.status()?;
        let reasons = slow_ones(&status);
        ensure!(reasons.is_empty(), "{}", reasons.join("; "));
        Ok(())
    })?;
    Ok(known(scene, &addresses, &cases)?.map(|()| format!("{} flows are cached", cases.len())))
}

/// Lets the caches learn flows until they know all of them at one time: ports that come and go make them forget again, until OVS has
/// revalidated its flows.
fn known(scene: &mut Scene<'_>, addresses: &Addresses, cases: &[&Case]) -> Result<Result<(), String>> {
    let mut unknown = String::new();
    for _ in 0..LESSONS {
        learn(scene, addresses, cases)?;
        let caches = Caches::read(scene)?;
        match cases.iter().find(|case| !caches.know(addresses, case)) {
            Some(case) => unknown = format!("the cache does not know the flow of {}", case.name),
            None => return Ok(Ok(())),
        }
        thread::sleep(ENFORCED);
    }
    Ok(Err(unknown))
}

/// Everything on the node that is not on the fast path, each with its reason.
fn slow_ones(status: &Value) -> Vec<String> {
    let mut list = Vec::new();
    let mut look = |name: &str, path: &Value| {
        if path["path"] != "ebpf" {
            list.push(format!("{name}: {}", path["reason"].as_str().unwrap_or_default()));
        }
    };
    look("node", status);
    look("tunnel", &status["cache"]["tunnel"]);
    look("gateway", &status["cache"]["gateway"]);
    for endpoint in status["endpoints"].as_array().into_iter().flatten() {
        look(endpoint["pod"].as_str().unwrap_or_default(), endpoint);
    }
    list
}

/// Whether the agent says who is slow, and why; what it says.
fn is_slow(scene: &Scene<'_>, trial: &Trial) -> Result<String> {
    let status = scene.agent(0)?.status()?;
    let slow = slow_ones(&status);
    let of = |name: &str| slow.iter().find(|one| one.starts_with(&format!("{name}: ")));
    let wanted: Vec<String> = match trial.slow {
        Slow::Node => vec!["node".to_owned()],
        Slow::Pods(list) => list.iter().map(|who| format!("{NAMESPACE}/{}", who.name())).collect(),
        Slow::Uplink => vec!["tunnel".to_owned(), "gateway".to_owned()],
    };
    for name in &wanted {
        let said = of(name).with_context(|| format!("{name} is not slow: {slow:?}"))?;
        ensure!(said.contains(trial.why), "{said}");
    }
    // And nobody else.
    ensure!(trial.slow == Slow::Node || slow.len() == wanted.len(), "{slow:?}");
    let said = wanted.iter().filter_map(|name| of(name)).cloned().collect::<Vec<_>>();
    Ok(said.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_slow_is_read_with_the_reason() {
        let fast = json!({"path": "ebpf", "reason": "eligible"});
        let mut status = json!({
            "path": "ebpf", "reason": "eligible",
            "cache": {"tunnel": fast, "gateway": fast},
            "endpoints": [{"pod": "exact/a", "path": "ovs", "reason": "the port is mirrored (mirror exact)"}]
        });
        assert_eq!(slow_ones(&status), ["exact/a: the port is mirrored (mirror exact)"]);
        status["cache"]["tunnel"]["path"] = "ovs".into();
        assert_eq!(slow_ones(&status).len(), 2);
    }
}
