//! A node rebooted: its disk stays, everything else is made again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::leftovers;
use super::world::World;

const NODE: &str = "n2";
const PODS: [&str; 2] = ["b1", "b2"];

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let ports = world.run(NODE, "ovs-vsctl", &["list-ports", "br-int"])?;
    let before: Vec<String> = PODS.iter().map(|pod| started(world, pod)).collect::<Result<_>>()?;
    let begin = Instant::now();
    world.bed.reboot(NODE)?;
    let on = begin.elapsed().as_secs_f64();
    for (pod, old) in PODS.iter().zip(&before) {
        // Until then the API server only knows what was before.
        world.eventually(&format!("{pod} is started again"), || {
            let now = started(world, pod)?;
            ensure!(!now.is_empty() && now != *old, "its container is still {now}");
            Ok(())
        })?;
    }
    world.ready(&PODS)?;
    for pod in PODS {
        world.answers(pod)?;
    }
    let up = begin.elapsed().as_secs_f64();
    world.wait_node(NODE, "True")?;
    world.stream()?.goes_on(Duration::from_secs(2))?;
    let clear = world.eventually("each pod has its own", || leftovers::check(world.bed).map(drop))?;
    let now = world.run(NODE, "ovs-vsctl", &["list-ports", "br-int"])?;
    let old = now.lines().find(|port| is_of_pod(port) && ports.lines().any(|other| other == *port));
    ensure!(old.is_none(), "the port {} of a sandbox from before is there", old.unwrap_or_default());
    let restarts = world.field("pod/b1", ".status.containerStatuses[0].restartCount").context("restarts")?;
    Ok(format!(
        "its processes run after {on:.1} s, its pods answer after {up:.1} s (restarted {restarts} times); each pod has its \
         port, link and namespace once {clear} later"
    ))
}

fn started(world: &World<'_>, pod: &str) -> Result<String> {
    world.field(&format!("pod/{pod}"), ".status.containerStatuses[0].state.running.startedAt")
}

fn is_of_pod(port: &str) -> bool {
    port.len() == 15 && !port.contains('-')
}
