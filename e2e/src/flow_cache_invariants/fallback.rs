//! The conditions under which packets fall back to OVS (docs/datapath.md), as far as they are not about services: each condition is forced, traffic goes
//! on, and the status tells the path with its reason. And what ends when the condition ends.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::load_pods::NAMESPACE;
use super::scene::{FLOWS, Scene};
use super::{Stage, no_bpf};
use testbed::exec;
use testbed::tools::load::now;

/// How long it may take until a condition is reported.
const SOON: Duration = Duration::from_secs(15);
/// After this long without an agent nothing is learned any more: 5 s, and a tick or two.
const NO_HEARTBEAT: Duration = Duration::from_millis(6500);
/// Number of a flow beside those of the scene.
const LATE_FLOW: u32 = 40;

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    if !stage.fast() {
        return without(stage).await;
    }
    let mut scene = Scene::new(stage.bed).await?;
    node_switch(stage, &scene).await?;
    pod_switch(stage, &scene).await?;
    sequence_check(stage, &scene).await?;
    switch_down(stage, &scene).await?;
    scene.dial().await?;
    agent_down(stage, &mut scene).await?;
    no_bpf::lost(stage, &scene).await?;
    scene.end().await?;
    no_bpf::never(stage).await
}

/// Without eBPF there is one row: the path is `ovs`, and the status says who wanted it.
async fn without(stage: &mut Stage<'_>) -> Result<()> {
    let scene = Scene::new(stage.bed).await?;
    let node = scene.nodes[0].clone();
    let told = told(&scene, &node, "/path", |path| path == "ovs", "/reason").await;
    stage.checks.check("--datapath=ovs: the status says so", said(told));
    scene.end().await
}

/// An outcome as checks take it.
pub(super) fn said(outcome: Result<String>) -> Result<String, String> {
    outcome.map_err(|error| format!("{error:#}"))
}

/// Waits until a member of a node's status is as it must be; returns another one, the reason.
pub(super) async fn told(
    scene: &Scene<'_>,
    node: &str,
    member: &str,
    good: impl Fn(&Value) -> bool,
    reason: &str,
) -> Result<String> {
    let end = Instant::now() + SOON;
    loop {
        let status = tokio::task::block_in_place(|| scene.pods.agent(node).status());
        let status = match status {
            Ok(status) if status.pointer(member).is_some_and(&good) => {
                let text = status.pointer(reason).and_then(Value::as_str).unwrap_or_default();
                if text.is_empty() {
                    bail!("{member} is right, but there is no reason");
                }
                return Ok(text.to_owned());
            }
            other => other,
        };
        if Instant::now() > end {
            let status = status.with_context(|| format!("status of {node}"))?;
            bail!("{member} is {:?}, its reason {:?}", status.pointer(member), status.pointer(reason));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// All flows of the scene arrive.
pub(super) async fn traffic(stage: &mut Stage<'_>, scene: &Scene<'_>, what: &str) {
    scene.pods.log.take();
    sleep(Duration::from_secs(2)).await;
    let silent: Vec<_> = scene
        .seen()
        .await
        .into_iter()
        .filter(|seen| seen.arrivals.is_empty())
        .map(|seen| seen.name)
        .collect();
    let outcome =
        if silent.is_empty() { Ok(String::new()) } else { Err(format!("not {}", silent.join(", "))) };
    stage.checks.check(format_args!("{what}: traffic goes on"), outcome);
}

async fn node_switch(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let node = scene.nodes[0].clone();
    scene.pods.agent(&node).slipctl(&["path", "node", "ovs"])?;
    let outcome = told(scene, &node, "/path", |path| path == "ovs", "/reason").await;
    stage.checks.check("slipctl path node ovs: the node is on ovs", said(outcome));
    traffic(stage, scene, "slipctl path node ovs").await;
    scene.pods.agent(&node).slipctl(&["path", "node", "auto"])?;
    let outcome = told(scene, &node, "/path", |path| path == "ebpf", "/path").await;
    stage.checks.check("slipctl path node auto: the node is on ebpf again", said(outcome));
    Ok(())
}

async fn pod_switch(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let node = scene.nodes[0].clone();
    let pod = format!("{NAMESPACE}/a");
    let path_of = |endpoints: &Value| {
        let list = endpoints.as_array().into_iter().flatten();
        list.clone().find(|endpoint| endpoint["pod"] == pod.as_str()).map(|endpoint| endpoint["path"].clone())
    };
    let annotate = |value: Value| json!({"metadata": {"annotations": {"slipstream.dev/path": value}}});
    scene.pods.patch("a", annotate("ovs".into())).await?;
    let on = |path: &'static str| move |found: Option<Value>| found.is_some_and(|found| found == path);
    let outcome = told(scene, &node, "/endpoints", |list| on("ovs")(path_of(list)), "/node").await;
    stage.checks.check("slipstream.dev/path: ovs on a pod: its endpoint is on ovs", said(outcome));
    traffic(stage, scene, "slipstream.dev/path: ovs").await;
    // The next agent must not put the pod on the fast path before it has asked the API server.
    let before = fast_packets(scene, &node, &pod);
    scene.pods.restart(&node, "node-agent")?;
    scene.pods.agent_ready(&node).await?;
    let outcome = told(scene, &node, "/endpoints", |list| on("ovs")(path_of(list)), "/node").await;
    stage.checks.check("slipstream.dev/path: ovs outlives the agent", said(outcome));
    scene.pods.agent_sees(&node).await?;
    traffic(stage, scene, "slipstream.dev/path: ovs, another agent").await;
    let outcome = match (before, fast_packets(scene, &node, &pod)) {
        (Ok(before), Ok(after)) if before == after => Ok(String::new()),
        other => Err(format!("fast packets before and after: {other:?}")),
    };
    stage.checks.check("slipstream.dev/path: ovs, another agent: no packet of the pod was fast", outcome);
    scene.pods.patch("a", annotate(Value::Null)).await?;
    let outcome = told(scene, &node, "/endpoints", |list| on("ebpf")(path_of(list)), "/node").await;
    stage.checks.check("without the annotation: its endpoint is on ebpf again", said(outcome));
    Ok(())
}

/// Packets of a pod that were carried by the flow cache, as counted since its programs were attached.
fn fast_packets(scene: &Scene<'_>, node: &str, pod: &str) -> Result<u64> {
    let shown = scene.pods.agent(node).counters()?;
    let list = shown["endpoints"].as_array().context("no endpoints")?;
    let mine = list.iter().find(|endpoint| endpoint["pod"] == pod).with_context(|| format!("no {pod}"))?;
    let of = |way: &str| mine[way]["fast"]["packets"].as_u64().with_context(|| format!("{way}: {mine}"));
    Ok(of("in")? + of("out")?)
}

/// The agent cannot ask vswitchd about the sequence check, as its control socket is not where it was.
async fn sequence_check(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let node = scene.nodes[0].clone();
    let run = |script: &str| -> Result<String> {
        exec::output(stage.bed.host(&node).command("sh")?.args(["-c", script]))
    };
    run("cd /run/openvswitch && for f in ovs-vswitchd.*.ctl ovs-vswitchd.pid; do mv $f away-$f; done")?;
    scene.pods.restart(&node, "node-agent")?;
    let outcome = told(scene, &node, "/cache/tcp/path", |path| path == "ovs", "/cache/tcp/reason").await;
    stage.checks.check("the sequence check is not verified: TCP is on ovs", said(outcome));
    traffic(stage, scene, "the sequence check is not verified").await;
    run("cd /run/openvswitch && for f in away-*; do mv $f ${f#away-}; done")?;
    scene.pods.restart(&node, "node-agent")?;
    scene.pods.agent_ready(&node).await?;
    let outcome = told(scene, &node, "/cache/tcp/path", |path| path == "ebpf", "/cache/tcp/path").await;
    stage.checks.check("the sequence check is verified: TCP is on ebpf", said(outcome));
    Ok(())
}

async fn switch_down(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let node = scene.nodes[0].clone();
    scene.pods.kill(&node, "ovs-vswitchd")?;
    let outcome = told(scene, &node, "/cache/sight", |sight| sight != "open", "/cache/blind").await;
    stage.checks.check("OVS down: the status tells it", said(outcome));
    scene.pods.restart(&node, "ovs-vswitchd")?;
    let outcome = told(scene, &node, "/cache/sight", |sight| sight == "open", "/cache/sight").await;
    stage.checks.check("OVS is back: the fast path is open", said(outcome));
    Ok(())
}

/// Without a heartbeat nothing is learned. A flow that began then goes by OVS: it ends at once when vswitchd does. (That one
/// that is cached does not is shown by the part about dead processes.)
async fn agent_down(stage: &mut Stage<'_>, scene: &mut Scene<'_>) -> Result<()> {
    for node in &scene.nodes {
        scene.pods.kill(node, "node-agent")?;
    }
    sleep(NO_HEARTBEAT).await;
    scene.pods.dial(LATE_FLOW, "a", "b", true)?;
    sleep(Duration::from_secs(2)).await;
    let before = scene.pods.log.take();
    let outcome = match before.get(&LATE_FLOW).map_or(0, Vec::len) {
        0 => Err("nothing arrived".to_owned()),
        count => Ok(format!("{count} packets")),
    };
    stage.checks.check("agent down for 6.5 s: a new flow passes", outcome);
    for node in &scene.nodes {
        scene.pods.kill(node, "ovs-vswitchd")?;
    }
    let dead = now();
    sleep(Duration::from_millis(1500)).await;
    let after = scene.pods.log.take();
    // What was sent before may have been inside OVS, or was lost there.
    let late = |flow: u32| after.get(&flow).into_iter().flatten().filter(|a| a.sent > dead).count();
    let outcome = match late(LATE_FLOW) {
        0 => Ok(String::new()),
        count => Err(format!("{count} packets that were sent after OVS had ended")),
    };
    stage.checks.check("agent down for 6.5 s: the new flow was not learned", outcome);
    // Else the gate was closed, and this has tested nothing. An entry whose refresh comes just then lives for the grace of 200 ms.
    let old: usize = (0..).zip(FLOWS).map(|(flow, _)| late(flow)).sum();
    let outcome = if old > 0 { Ok(format!("{old} packets")) } else { Err("nothing arrived".into()) };
    stage.checks.check("agent down for 6.5 s: what was learned before goes on without OVS", outcome);
    for node in &scene.nodes {
        scene.pods.restart(node, "ovs-vswitchd")?;
        scene.pods.restart(node, "node-agent")?;
    }
    for node in &scene.nodes {
        scene.pods.agent_ready(node).await?;
    }
    traffic(stage, scene, "agents and OVS are back").await;
    Ok(())
}
