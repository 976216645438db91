//! Trial of suite `node_lifecycle`: a pod that the kubelet has from a file.

use std::fs;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::leftovers;
use super::world::{HEAL, NAMESPACE, World};
use testbed::exec;

const NODE: &str = "n2";
const DIRECTORY: &str = "/etc/kubernetes/manifests";

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let before = world.quiet()?;
    // The kubelet adds the node's name.
    let (name, mirror) = ("fixed", format!("fixed-{NODE}"));
    let mut object = world.manifest(name, NODE)?;
    object["spec"]["hostname"] = mirror.as_str().into();
    let file = world.file(NODE, DIRECTORY)?.join("fixed.json");
    let begin = Instant::now();
    // Written elsewhere first, as the kubelet reads whatever appears.
    let new = world.file(NODE, "/etc/kubernetes")?.join("fixed.json");
    fs::write(&new, object.to_string())?;
    fs::rename(&new, &file)?;
    let outcome = served(world, &mirror);
    let ready = begin.elapsed().as_secs_f64();
    fs::remove_file(&file)?;
    let ip = outcome?;
    world.eventually("its mirror goes with the file", || {
        let left = world.bed.kubectl(&[
            "get",
            "pod",
            "-n",
            NAMESPACE,
            "--ignore-not-found",
            "-o",
            "name",
            &mirror,
        ])?;
        ensure!(left.trim().is_empty(), "{left} is there");
        Ok(())
    })?;
    let clear = world.nothing_left(&before)?;
    Ok(format!("answers at {ip} {ready:.1} s after its file came; nothing left {clear} after the file went"))
}

fn served(world: &World<'_>, mirror: &str) -> Result<String> {
    exec::retry(HEAL, "its mirror is in the API", || world.field(&format!("pod/{mirror}"), ".metadata.uid"))?;
    world.ready(&[mirror])?;
    world.answers(mirror)?;
    let (ip, subnet) = (world.address(mirror)?, world.subnet(NODE)?);
    ensure!(subnet.contains(&ip), "{ip} is not in {subnet}");
    leftovers::check(world.bed)?;
    Ok(ip.to_string())
}
