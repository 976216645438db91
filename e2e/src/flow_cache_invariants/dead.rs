//! Law 1 and 3 with everything in user space dead: agents and ovn-controllers are killed and stay down, then OVS's own flows are
//! changed by hand. No process reports the change to the programs; only the refresh bounds how long they repeat the old verdict. And
//! OVS itself dies: cached flows continue through the hold, and not for longer, whether or not the agents live to see its end.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::scene::Scene;
use super::{Stage, ms, nanos};
use testbed::tools::load::now;

/// Refresh 2 s, slack 200 ms, grace 200 ms.
const BOUND: Duration = Duration::from_millis(2400);
/// The clock of the programs ticks with the kernel's timer, each 1 to 10 ms, and this machine is busy.
const MARGIN: Duration = Duration::from_millis(150);
/// How long OVS is down, well inside the hold of 10 s, and beyond what a flow could live without it (2.4 s).
const AWAY: Duration = Duration::from_secs(6);
/// The hold, and a refresh that fails after it.
const HOLD: Duration = Duration::from_millis(10_000 + 2400 + 600);
/// The agents need so long to see that OVS is gone, and hold.
const SEEN: Duration = Duration::from_millis(1500);
/// How long an agent lives that is killed again and again: long enough to find what was left.
const LIFE: Duration = Duration::from_millis(2500);
/// Where br-int takes OpenFlow on its node.
const BRIDGE: &str = "unix:/run/openvswitch/br-int.mgmt";
/// Flows that are carried may be silent for so long.
const GAP: Duration = Duration::from_millis(500);

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let mut scene = Scene::new(stage.bed).await?;
    flows_changed(stage, &scene).await?;
    scene.dial().await?;
    switch_away(stage, &mut scene).await?;
    scene.dial().await?;
    switch_dead(stage, &scene).await?;
    for agent in [Agent::Dead, Agent::Crashes] {
        scene.dial().await?;
        both_dead(stage, &scene, agent).await?;
    }
    scene.end().await
}

/// Agents and ovn-controllers are dead, and OVS's flows are changed.
async fn flows_changed(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    let nodes = scene.nodes.clone();
    for node in &nodes {
        scene.pods.kill(node, "node-agent")?;
        scene.pods.kill(node, "ovn-controller")?;
    }
    sleep(Duration::from_secs(1)).await;
    let running = scene.seen().await;
    let still = running.iter().filter(|seen| !seen.arrivals.is_empty()).count();
    let went = (still == running.len()).then(String::new);
    stage.checks.check("flows go on without agents and ovn-controllers", went.ok_or("some do not".into()));
    let change = |node: &str| -> Result<()> {
        let flow = "table=0,priority=65535,ip,actions=drop";
        stage.bed.ovs(node, "ovs-ofctl", &["add-flow", BRIDGE, flow]).map(drop)
    };
    let mut changed = 0;
    for node in nodes.iter().rev() {
        change(node).with_context(|| format!("flows of {node}"))?;
        changed = now();
    }
    sleep(BOUND + Duration::from_secs(2)).await;
    let limit = changed + nanos(BOUND);
    for seen in scene.seen().await {
        let late = seen.after(limit + nanos(MARGIN)).count();
        let last = seen.arrivals.last().map_or(0, |last| last.at.saturating_sub(changed));
        let outcome = if late == 0 {
            Ok(format!("the last one {} ms after the change", ms(last)))
        } else {
            Err(format!("{late} packets later than {BOUND:?}, the last {} ms after", ms(last)))
        };
        stage
            .checks
            .check(format_args!("user space dead, OVS's flows changed: {} stops", seen.name), outcome);
        if stage.fast() && seen.udp {
            // Else this would have tested nothing.
            let carried = seen.after(changed + nanos(Duration::from_millis(100))).count();
            let outcome = if carried > 0 { Ok(format!("{carried} packets")) } else { Err("none".into()) };
            stage.checks.check(format_args!("{} was carried by the cache until then", seen.name), outcome);
        }
    }
    for node in &nodes {
        let flow = "table=0,priority=65535,ip";
        stage.bed.ovs(node, "ovs-ofctl", &["--strict", "del-flows", BRIDGE, flow])?;
        scene.pods.restart(node, "ovn-controller")?;
        scene.pods.restart(node, "node-agent")?;
    }
    ready(scene).await
}

async fn ready(scene: &Scene<'_>) -> Result<()> {
    for node in &scene.nodes {
        scene.pods.agent_ready(node).await?;
        scene.pods.agent_sees(node).await?;
    }
    // OVS's flows come back with ovn-controller, and each change of them invalidates the cache.
    sleep(Duration::from_secs(3)).await;
    Ok(())
}

/// OVS is down for a while; the agents live and hold.
async fn switch_away(stage: &mut Stage<'_>, scene: &mut Scene<'_>) -> Result<()> {
    for node in &scene.nodes {
        scene.pods.kill(node, "ovs-vswitchd")?;
    }
    let from = now();
    sleep(AWAY).await;
    let to = now();
    let gone = scene.seen().await;
    for node in &scene.nodes {
        scene.pods.restart(node, "ovs-vswitchd")?;
    }
    for seen in &gone {
        if stage.fast() {
            let silence = seen.longest_silence(from, to);
            let text = format!("{} packets, no silence longer than {} ms", seen.arrivals.len(), ms(silence));
            let outcome = if silence <= nanos(GAP) { Ok(text) } else { Err(text) };
            stage.checks.check(format_args!("OVS away for {AWAY:?}: {} goes on", seen.name), outcome);
        }
    }
    ready(scene).await?;
    scene.seen().await;
    sleep(Duration::from_secs(3)).await;
    for seen in scene.seen().await {
        let count = seen.arrivals.len();
        let outcome = if count > 0 { Ok(format!("{count} packets")) } else { Err("nothing".into()) };
        stage.checks.check(format_args!("OVS is back: {} goes on", seen.name), outcome);
    }
    Ok(())
}

/// What becomes of the agents after OVS is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    /// They are dead.
    Dead,
    /// They are started again and again, and end soon each time.
    Crashes,
}

/// OVS is killed, and then the agents, which have seen it and hold. The hold ends all the same.
async fn both_dead(stage: &mut Stage<'_>, scene: &Scene<'_>, agent: Agent) -> Result<()> {
    for node in &scene.nodes {
        scene.pods.kill(node, "ovs-vswitchd")?;
    }
    let from = now();
    sleep(SEEN).await;
    for node in &scene.nodes {
        scene.pods.kill(node, "node-agent")?;
    }
    let end = from + nanos(HOLD + Duration::from_secs(4));
    while now() < end {
        sleep(LIFE).await;
        if agent == Agent::Crashes {
            for node in &scene.nodes {
                scene.pods.restart(node, "node-agent")?;
            }
        }
    }
    let what = match agent {
        Agent::Dead => "OVS killed, then the agents",
        Agent::Crashes => "OVS killed, then the agents again and again",
    };
    for seen in scene.seen().await {
        let late = seen.after(from + nanos(HOLD)).count();
        let last = seen.arrivals.last().map_or(0, |last| last.at.saturating_sub(from));
        let text = format!("{late} packets later than {HOLD:?}, the last {} ms after", ms(last));
        let outcome = if late == 0 { Ok(text.clone()) } else { Err(text.clone()) };
        stage.checks.check(format_args!("{what}: {} stops", seen.name), outcome);
        if stage.fast() && seen.udp && agent == Agent::Dead {
            // Else nothing was held. An agent that starts may cut flows off earlier, as it reads the underlay again.
            let outcome = if last > nanos(BOUND) * 2 { Ok(text) } else { Err(text) };
            stage.checks.check(format_args!("{what}: {} went on through the hold", seen.name), outcome);
        }
    }
    for node in &scene.nodes {
        scene.pods.restart(node, "ovs-vswitchd")?;
        scene.pods.restart(node, "node-agent")?;
    }
    ready(scene).await
}

/// OVS is down for longer than the hold.
async fn switch_dead(stage: &mut Stage<'_>, scene: &Scene<'_>) -> Result<()> {
    for node in &scene.nodes {
        scene.pods.kill(node, "ovs-vswitchd")?;
    }
    let from = now();
    sleep(HOLD + Duration::from_secs(2)).await;
    for seen in scene.seen().await {
        let late = seen.after(from + nanos(HOLD)).count();
        let last = seen.arrivals.last().map_or(0, |last| last.at.saturating_sub(from));
        let text = format!("{late} packets later than {HOLD:?}, the last {} ms after", ms(last));
        let outcome = if late == 0 { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("OVS away for longer than the hold: {} stops", seen.name), outcome);
    }
    for node in &scene.nodes {
        scene.pods.restart(node, "ovs-vswitchd")?;
    }
    ready(scene).await
}
