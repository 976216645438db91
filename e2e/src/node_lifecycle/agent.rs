//! The node agent is stopped while pods run, come and go.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::world::{NAMESPACE, World};

const NODE: &str = "n1";
/// It is not on the way of a packet.
const BOUND: Duration = Duration::from_secs(2);

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let before = world.quiet()?;
    let identities = world.identities()?;
    world.start("leaving", NODE)?;
    let stream = world.stream()?;
    let host = world.bed.host(NODE);
    host.kill("node-agent")?;
    world.create("coming", NODE)?;
    world.bed.kubectl(&["delete", "pod", "-n", NAMESPACE, "leaving", "--wait=false"])?;
    // Long enough that the kubelet has asked in vain for both.
    thread::sleep(Duration::from_secs(4));
    let phase = world.field("pod/coming", ".status.phase")?;
    ensure!(phase == "Pending", "without an agent, a new pod is {phase}");
    stream.goes_on(BOUND)?;
    let begin = Instant::now();
    host.restart("node-agent")?;
    world.ready(&["coming"])?;
    world.answers("coming")?;
    let back = begin.elapsed().as_secs_f64();
    let seen = stream.goes_on(BOUND)?;
    world.delete(&["coming", "leaving"])?;
    let clear = world.nothing_left(&before)?;
    let after = world.identities()?;
    ensure!(identities == after, "pods changed: {identities:?} became {after:?}");
    Ok(format!(
        "{seen}; a pod made meanwhile answers {back:.1} s after the agent's start; nothing left of it and of one deleted \
         meanwhile {clear} later"
    ))
}
