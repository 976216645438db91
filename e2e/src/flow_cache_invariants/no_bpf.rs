//! Rows of the fallback table about nodes where eBPF does not work: the agent lacks its capabilities, or there is no bpffs
//! where it is to pin. (A kernel below the floor is what `cargo xtask vm-test 5.10` has.)

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Stage;
use super::fallback::{said, told, traffic};
use super::scene::Scene;
use testbed::cluster::config::AttachMode;
use testbed::cluster::{Bed, ENVIRONMENT, agent_arguments};
use testbed::exec;

/// A directory that is not on a bpffs.
const NO_BPFFS: &str = "/var/lib/slipstream/no-bpffs";
/// How long an agent that cannot start may take to report it.
const REFUSE: &str = "20";
/// After a cleanup and a start OVN makes the node's flows from scratch.
const SETTLE: Duration = Duration::from_secs(3);

/// Flags of a node's agent, some of them replaced.
fn flags(bed: &Bed, node: &str, other: &[(&str, &str)]) -> Vec<String> {
    let mut flags = agent_arguments(bed.config(), node);
    for (name, value) in other {
        let begin = format!("--{name}=");
        flags.retain(|flag| !flag.starts_with(&begin));
        flags.push(format!("{begin}{value}"));
    }
    flags
}

/// Runs an agent without the capabilities for eBPF, which must end by itself; what it said.
fn refused(bed: &Bed, node: &str, datapath: &str) -> Result<String> {
    let mut command = bed.host(node).command("timeout")?;
    command.args(["--signal=KILL", REFUSE, "setpriv", "--bounding-set=-sys_admin,-bpf,-perfmon"]);
    command.arg(bed.config().program("slipstream-node-agent")).arg("run");
    command.args(flags(bed, node, &[("datapath", datapath)])).envs(ENVIRONMENT.iter().copied());
    command.env("NO_COLOR", "1");
    let done = exec::capture(&mut command, "")?;
    let text = done.stdout + &done.stderr;
    // Killed by `timeout` it has no code, or 137.
    ensure!(done.status.code() == Some(1), "it ended with {}: {text}", done.status);
    Ok(text)
}

/// An agent that has lost what eBPF needs, on a node whose pods use the programs: it reports that and exits, and traffic continues
/// unchanged.
pub(super) async fn lost(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let node = scene.nodes[0].clone();
    for (datapath, wanted) in [
        ("ebpf", ["--datapath=ebpf", "lacks CAP_BPF"]),
        ("auto", ["lacks CAP_BPF", "attached through eBPF programs of an earlier run"]),
    ] {
        scene.pods.kill(&node, "node-agent")?;
        let what = format!("the agent lacks CAP_BPF, --datapath={datapath}");
        let refused = tokio::task::block_in_place(|| refused(stage.bed, &node, datapath));
        let outcome = refused.map_err(|error| format!("{error:#}")).and_then(|text| {
            let last = text.lines().next_back().unwrap_or_default().to_owned();
            if wanted.iter().all(|part| text.contains(part)) { Ok(last) } else { Err(text) }
        });
        stage.checks.check(format_args!("{what}: it says why and ends"), outcome);
        traffic(stage, scene, &what).await;
        scene.pods.restart(&node, "node-agent")?;
        scene.pods.agent_ready(&node).await?;
        scene.pods.agent_sees(&node).await?;
    }
    Ok(())
}

/// Takes an agent and all that it has set up off a node that has no pods.
///
/// Then OVS is set up for what comes: without programs in between it must itself take packets whose checksum or segmentation
/// is left to the device. It reads that at its start only.
fn clean(bed: &Bed, node: &str, other: &[(&str, &str)], tso: bool) -> Result<()> {
    bed.host(node).kill("node-agent")?;
    let mut command = bed.host(node).command(bed.config().program("slipstream-node-agent"))?;
    command.arg("cleanup").args(flags(bed, node, other)).envs(ENVIRONMENT.iter().copied());
    exec::output(&mut command).with_context(|| format!("cleanup of {node}"))?;
    let setting = format!("other_config:userspace-tso-enable={tso}");
    bed.vsctl(node, &["--no-wait", "set", "Open_vSwitch", ".", &setting])?;
    bed.host(node).restart("ovs-vswitchd")
}

fn start(bed: &Bed, node: &str, other: &[(&str, &str)]) -> Result<()> {
    let program = bed.config().program("slipstream-node-agent").display().to_string();
    let argv: Vec<String> = [program, "run".into()].into_iter().chain(flags(bed, node, other)).collect();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    bed.host(node).start("node-agent", &argv, ENVIRONMENT)
}

/// A node that cannot have eBPF: with `--datapath=auto` its pods work on OVS alone, beside a node that has it. No pods may be
/// there.
pub(super) async fn never(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    let node = bed.config().node_names().pop().context("no nodes")?;
    let direct = bed.config().attach_mode == AttachMode::Direct;
    let without = [("datapath", "auto"), ("bpf-dir", NO_BPFFS)];
    tokio::task::block_in_place(|| clean(bed, &node, &[], true).and_then(|()| start(bed, &node, &without)))?;
    tokio::task::block_in_place(|| bed.wait_node_ready(&node))?;
    let mut scene = Scene::new(stage.bed).await?;
    scene.pods.agent_ready(&node).await?;
    let reason = told(&scene, &node, "/path", |path| path == "ovs", "/reason").await;
    let reason = reason.and_then(|reason| {
        ensure!(reason.contains("is not on a bpffs"), "the reason is {reason:?}");
        Ok(reason)
    });
    stage.checks.check("no bpffs, --datapath=auto: the node is on ovs and says why", said(reason));
    let table = scene.pods.agent(&node).slipctl(&["status"]);
    let shown = table.and_then(|text| {
        ensure!(text.contains("is not on a bpffs"), "{text}");
        Ok(String::new())
    });
    stage.checks.check("no bpffs, --datapath=auto: slipctl status shows it", said(shown));
    scene.dial().await?;
    traffic(stage, &scene, "no bpffs, --datapath=auto").await;
    scene.end().await?;
    tokio::task::block_in_place(|| {
        clean(bed, &node, &without, direct).and_then(|()| start(bed, &node, &[]))
    })?;
    tokio::task::block_in_place(|| bed.wait_node_ready(&node))?;
    let scene = Scene::new(stage.bed).await?;
    scene.pods.agent_ready(&node).await?;
    scene.pods.agent_sees(&node).await?;
    tokio::time::sleep(SETTLE).await;
    let back = told(&scene, &node, "/path", |path| path == "ebpf", "/path").await;
    stage.checks.check("with a bpffs again: the node is on ebpf", said(back));
    traffic(stage, &scene, "with a bpffs again").await;
    scene.end().await
}
