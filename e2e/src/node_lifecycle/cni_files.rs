//! Trial of suite `node_lifecycle`: the runtime's CNI configuration and our executable, broken by hand.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::world::World;
use testbed::nodes::cni::{BIN_DIR, CONF_DIR};

const NODE: &str = "n1";
const METRIC: &str = "slipstream_node_cni_files_restored_total";

pub(super) fn mended(world: &World<'_>) -> Result<String> {
    let (conf, executable) = (
        world.file(NODE, CONF_DIR)?.join("10-slipstream.conf"),
        world.file(NODE, BIN_DIR)?.join("slipstream-cni"),
    );
    let before = count(world)?;
    let log = world.log(NODE, "node-agent");
    let mut seen = Vec::new();
    let mut mended = |what: &str, file: &Path, breaks: &dyn Fn() -> Result<()>| {
        let good = fs::read(file).with_context(|| file.display().to_string())?;
        breaks()?;
        let took = world.eventually(&format!("the {what} is written again"), || {
            let now = fs::read(file)?;
            ensure!(now == good, "it has {} bytes, not {}", now.len(), good.len());
            let mode = fs::metadata(file)?.permissions().mode() & 0o111;
            ensure!(mode == 0 || mode == 0o111, "its mode has {mode:o}");
            Ok(())
        })?;
        seen.push(format!("{what} {took}"));
        anyhow::Ok(())
    };
    mended("garbled configuration", &conf, &|| Ok(fs::write(&conf, "{\"cniVersion\"")?))?;
    mended("removed configuration", &conf, &|| Ok(fs::remove_file(&conf)?))?;
    // Not the directory: containerd ends when that goes.
    mended("removed executable", &executable, &|| Ok(fs::remove_file(&executable)?))?;
    log.tells(&[&"CNI configuration", &"written again"])?;
    log.tells(&[&"CNI executable", &"written again"])?;
    let counted = count(world)? - before;
    ensure!(counted >= 3, "the agent counted {counted} files");
    world.wait_node(NODE, "True")?;
    let started = world.start("after-files", NODE)?;
    world.delete(&["after-files"])?;
    Ok(format!("{}; told and counted; new pod {started}", seen.join(", ")))
}

/// Without an agent no process repairs it: the node must report it, and become Ready by the agent's start alone.
pub(super) fn agent_away(world: &World<'_>) -> Result<String> {
    let host = world.bed.host(NODE);
    let conf = world.file(NODE, CONF_DIR)?.join("10-slipstream.conf");
    host.kill("node-agent")?;
    fs::write(&conf, "{\"cniVersion\"")?;
    let outcome = world.wait_node(NODE, "False");
    host.restart("node-agent")?;
    let noticed = outcome?;
    let back = world.wait_node(NODE, "True")?;
    world.answers("a1")?;
    Ok(format!("garbled without an agent: NotReady after {noticed}; Ready {back} after the agent's start"))
}

fn count(world: &World<'_>) -> Result<u64> {
    world.bed.agent(NODE).metrics()?.sum(METRIC, &[])
}
