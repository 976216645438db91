//! Agents that are killed, and many pods at once.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::cluster::config::node_name;
use testbed::traffic::Dial;

use super::scene::{HEAL, RED, Scene, THREE, eventually, holds, place, same};

/// Pods that come and go at once.
const MANY: u8 = 20;

/// The agent of a node is killed and replaced: pods go on, one that is made and one that is deleted meanwhile get what is theirs later, and
/// an ADD that it was in the middle of leaves nothing.
pub(super) fn agent(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (red, bed) = (&scene.red, scene.bed());
    let (before, kept) = (red.quiet()?, scene.kept()?);
    red.apply(scene.naming("leaving", "n1", THREE)?)?;
    checks.check("a pod with three further interfaces runs", scene.runs(&["leaving"]));
    let host = bed.host("n1");
    host.kill("node-agent")?;
    red.apply(scene.naming("coming", "n1", THREE)?)?;
    bed.kubectl(&["delete", "pod", "-n", RED, "leaving", "--wait=false"])?;
    // Long enough that the kubelet has asked in vain for both.
    thread::sleep(Duration::from_secs(4));
    let phase = red.field("pod/coming", ".status.phase")?;
    checks.check(
        "without an agent a new pod waits, with nothing plugged in",
        holds(|| {
            let plugged = scene.plugged("coming")?;
            ensure!(phase == "Pending" && plugged.is_empty(), "{phase}, {plugged:?}");
            Ok(())
        }),
    );
    host.restart("node-agent")?;
    checks.check("it runs once there is one", scene.runs(&["coming"]));
    for network in ["red/own", "red/far"] {
        for server in ["m2", "coming"] {
            let expect = Expect::only(&format!("{server} {}", scene.address("m1", network)?));
            let dial = Dial::tcp(scene.address(server, network)?, 8080).to_pod(bed).times(2);
            let (_, verdict) = expect::settle(bed, &place("m1", "n1"), dial, &expect, HEAL);
            checks.check(format!("m1 reaches {server} by {network}"), verdict);
        }
    }
    // In the middle of calls.
    for round in 0..3 {
        let name = format!("cut{round}");
        red.apply(scene.naming(&name, "n1", THREE)?)?;
        thread::sleep(Duration::from_millis(150 + 200 * round));
        host.kill("node-agent")?;
        host.restart("node-agent")?;
    }
    checks.check("pods run whose ADD was cut short", scene.runs(&["cut0", "cut1", "cut2"]));
    red.delete(&["coming", "leaving", "cut0", "cut1", "cut2"])?;
    checks.check("nothing of them is left", nothing_left(scene, || before.equals(&red.snapshot()?), &kept));
    Ok(())
}

/// Twenty pods with three further interfaces each, deleted at once, some before they run.
pub(super) fn many(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (red, bed) = (&scene.red, scene.bed());
    let (before, kept) = (red.quiet()?, scene.kept()?);
    let names: Vec<String> = (0..MANY).map(|number| format!("many{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let make = || -> Result<()> {
        let pods =
            names.iter().zip(0..).map(|(name, number)| scene.naming(name, &node_name(1 + number % 2), THREE));
        let items = pods.collect::<Result<Vec<_>>>()?;
        red.apply(serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}))
    };
    make()?;
    let begin = Instant::now();
    checks.check(format!("{MANY} pods with three further interfaces run"), scene.runs(&names));
    let took = begin.elapsed().as_secs_f64();
    checks.check(
        "each address is given once",
        holds(|| {
            let mut all = Vec::new();
            for name in &names {
                all.push(scene.address(name, "red/own")?);
            }
            all.sort_unstable();
            let count = all.len();
            all.dedup();
            same(&all.len(), &count)
        })
        .map(|_| format!("all ran after {took:.1} s")),
    );
    red.delete(&names)?;
    checks.check("nothing of them is left", nothing_left(scene, || before.equals(&red.snapshot()?), &kept));
    for pause in [300, 1200, 2500] {
        make()?;
        thread::sleep(Duration::from_millis(pause));
        red.delete(&names)?;
    }
    checks.check(
        "nor of pods that are deleted while they start",
        nothing_left(scene, || before.equals(&red.snapshot()?), &kept),
    );
    let expect = Expect::only(&format!("m2 {}", scene.address("m1", "red/own")?));
    let dial = Dial::tcp(scene.address("m2", "red/own")?, 8080).to_pod(bed).times(2);
    let (_, verdict) = expect::settle(bed, &place("m1", "n1"), dial, &expect, HEAL);
    checks.check("those that stayed go on", verdict);
    Ok(())
}

fn nothing_left(
    scene: &Scene<'_>,
    same_snapshot: impl Fn() -> Result<()>,
    kept: &std::collections::BTreeMap<String, Vec<String>>,
) -> Result<String, String> {
    eventually(|| {
        same_snapshot()?;
        same(&scene.kept()?, kept)?;
        Ok(String::new())
    })
}
