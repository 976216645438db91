//! Trial of suite `node_lifecycle`: kubelet and containerd are restarted while pods run.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::leftovers;
use super::world::World;

/// Neither is on the way of a packet.
const BOUND: Duration = Duration::from_secs(2);

pub(super) fn kubelet(world: &World<'_>) -> Result<String> {
    restarted(world, "kubelet")
}

pub(super) fn containerd(world: &World<'_>) -> Result<String> {
    restarted(world, "containerd")
}

fn restarted(world: &World<'_>, process: &str) -> Result<String> {
    let before = world.identities()?;
    let stream = world.stream()?;
    let new = format!("after-{process}");
    for node in ["n1", "n2"] {
        world.bed.host(node).restart(process)?;
    }
    let started = world.start(&new, "n1")?;
    let seen = stream.goes_on(BOUND)?;
    for node in ["n1", "n2"] {
        world.wait_node(node, "True")?;
    }
    let after = world.identities()?;
    ensure!(before == after, "pods changed: {before:?} became {after:?}");
    world.delete(&[&new])?;
    world.eventually("each pod has its own", || leftovers::check(world.bed).map(drop))?;
    Ok(format!("pods unchanged; {seen}; new pod {started}"))
}
