//! Trial of suite `node_lifecycle`: many pods at once on one node.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use super::leftovers;
use super::world::{HEAL, NAMESPACE, World};
use testbed::exec;
use testbed::nodes::real;
use testbed::tools::Answer;
use testbed::traffic::{self, Dial, Place};

const NODE: &str = "n1";
/// Every so many there is one that tells its name; the others only are there.
const TELLING: u16 = 10;
/// Beside other work, on two cores.
const LIMIT: Duration = Duration::from_secs(180);

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let before = world.quiet()?;
    let begin = Instant::now();
    let names: Vec<String> = (0..world.burst).map(|i| format!("burst-{i}")).collect();
    world.apply_all(manifests(world)?)?;
    let pods = wait_ready(world)?;
    let ready = begin.elapsed().as_secs_f64();
    let subnet = world.subnet(NODE)?;
    let addresses: BTreeSet<Ipv4Addr> = pods.iter().map(|pod| pod.1).collect();
    ensure!(addresses.len() == names.len(), "{} pods have {} addresses", names.len(), addresses.len());
    let stray: Vec<_> = addresses.iter().filter(|ip| !subnet.contains(*ip)).collect();
    ensure!(stray.is_empty(), "not in {subnet}: {stray:?}");
    for (name, ip) in &pods {
        reached(world, name, *ip)?;
    }
    leftovers::check(world.bed)?;
    let begin = Instant::now();
    let args = ["delete", "pods", "-n", NAMESPACE, "-l", "burst=yes", "--timeout=180s"];
    world.bed.kubectl(&args)?;
    let gone = begin.elapsed().as_secs_f64();
    let clear = world.nothing_left(&before)?;
    Ok(format!(
        "{} pods Ready after {ready:.1} s, all reached from n2, gone after {gone:.1} s, nothing left {clear} later",
        names.len()
    ))
}

fn manifests(world: &World<'_>) -> Result<Vec<Value>> {
    let pause = real::image(world.bed.config(), "pause")?;
    let one = |i: u16| {
        let mut pod = world.manifest(&format!("burst-{i}"), NODE)?;
        pod["metadata"]["labels"]["burst"] = "yes".into();
        if !i.is_multiple_of(TELLING) {
            pod["spec"]["containers"] = json!([{"name": "main", "image": pause}]);
        }
        Ok(pod)
    };
    (0..world.burst).map(one).collect()
}

/// Their names and addresses, once all are Ready.
fn wait_ready(world: &World<'_>) -> Result<Vec<(String, Ipv4Addr)>> {
    let timeout = format!("--timeout={}s", LIMIT.as_secs());
    let args = ["wait", "pods", "-n", NAMESPACE, "-l", "burst=yes", "--for=condition=Ready", &timeout];
    world.bed.kubectl(&args)?;
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.podIP}\n{end}";
    let list = world.bed.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", "burst=yes", "-o", path])?;
    let pair = |line: &str| {
        let (name, ip) = line.split_once(' ')?;
        Some((name.to_owned(), ip.parse().ok()?))
    };
    list.lines().map(|line| pair(line).with_context(|| format!("pod and address: {line:?}"))).collect()
}

/// A pod that serves says its name; the stack of any other refuses.
fn reached(world: &World<'_>, name: &str, ip: Ipv4Addr) -> Result<()> {
    let number: u16 = name.rsplit('-').next().and_then(|n| n.parse().ok()).context("its number")?;
    exec::retry(HEAL, &format!("{name} at {ip} is reached from n2"), || {
        if number.is_multiple_of(TELLING) {
            return world.ask("n2", ip, name);
        }
        let dial = Dial::tcp(ip, 8080).within(Duration::from_secs(2));
        let attempts = traffic::dial(world.bed, &Place::Host("n2".into()), dial)?;
        match attempts.first().map(|attempt| &attempt.answer) {
            Some(Answer::Err(reason)) if reason == "refused" => Ok(()),
            Some(Answer::Err(reason)) => bail!("{reason}"),
            other => Err(anyhow!("{other:?}")),
        }
    })
}
