//! Trial of suite `node_lifecycle`: ovn-controller and ovs-vswitchd are killed while pods run.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::leftovers;
use super::world::World;

/// ovn-controller writes flows; those that are there go on. At its start it clears what it cannot know.
const BOUND_CONTROLLER: Duration = Duration::from_secs(10);
/// vswitchd carries the packets itself. It reads its flows again, and TCP retries after up to some seconds.
const BOUND_SWITCH: Duration = Duration::from_secs(20);
/// How long each is down.
const AWAY: Duration = Duration::from_secs(1);

pub(super) fn ovn_controller(world: &World<'_>) -> Result<String> {
    killed(world, "ovn-controller", BOUND_CONTROLLER)
}

pub(super) fn vswitchd(world: &World<'_>) -> Result<String> {
    killed(world, "ovs-vswitchd", BOUND_SWITCH)
}

fn killed(world: &World<'_>, process: &str, bound: Duration) -> Result<String> {
    let before = world.identities()?;
    let stream = world.stream()?;
    let new = format!("after-{}", process.trim_start_matches("ovs-"));
    // Both ends of the stream's way.
    for node in ["n1", "n2"] {
        let host = world.bed.host(node);
        host.kill(process)?;
        thread::sleep(AWAY);
        host.restart(process)?;
    }
    let seen = stream.goes_on(bound)?;
    let started = world.start(&new, "n1")?;
    let after = world.identities()?;
    ensure!(before == after, "pods changed: {before:?} became {after:?}");
    world.delete(&[&new])?;
    world.eventually("each pod has its own", || leftovers::check(world.bed).map(drop))?;
    Ok(format!("pods unchanged; {seen}, killed on both nodes for {AWAY:?} each; new pod {started}"))
}
