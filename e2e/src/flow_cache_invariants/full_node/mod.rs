//! A node with very many ports and cached flows, while pods and endpoints change elsewhere: the agent follows every change, soon, and uses
//! little; a revoked policy ends its flows; and an agent that is started there anew takes over.

mod figures;
mod ports;

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::Stage;
use super::bystanders::{BUSY, revoked};
use super::load_pods::New;
use super::ms;
use super::scene::{FLOWS, Scene};
use super::spray::sprayer_of;
use crate::scale::elsewhere::Elsewhere;
use figures::Figures;
use ports::Ports;
use testbed::tools::load::now;
use testbed::ui::say;

/// Over which the agent's use is measured while nothing changes.
const IDLE: Duration = Duration::from_secs(8);
/// How long changes go on.
const WATCHED: Duration = Duration::from_secs(20);
/// Longest time from a flow update to the invalidation of what it concerns, of 99 in 100. The control plane has the same two processors.
const FOLLOWED: Duration = Duration::from_millis(70);
/// Most of a processor that the agent may use meanwhile, in a test build.
const USED: f64 = 0.6;
/// Most of a processor while nothing changes.
const USED_IDLE: f64 = 0.1;
/// Memory for ports and their flows, beside the rest.
const GROWTH_KB: u64 = 128 * 1024;
/// Until an agent that is started anew sees every change.
const AGAIN: Duration = Duration::from_secs(30);
/// Longest silence of a flow that nothing concerns, as in the part about random changes.
const SILENCE: Duration = Duration::from_millis(2500);

/// Entries that the flows of one pod take at least. A pod may take a quarter of the notes, and what is not used ages.
const LEARNED: u64 = 5_000;

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    ensure!(stage.fast(), "without eBPF the agent follows no changes: --datapath ebpf");
    let mut scene = Scene::new(stage.bed).await?;
    let node = scene.nodes[0].clone();
    scene.pods.add(New { name: "s", node: &node, role: "spray", annotations: &[] }).await?;
    let empty = Figures::of(stage.bed, &node)?;
    let start = Instant::now();
    let ports = Ports::add(stage.bed, &node, stage.ports).await?;
    say(format_args!("  {} ports of {node} are bound after {:.0?}", stage.ports, start.elapsed()));
    sleep(Duration::from_secs(5)).await;
    idle(stage, &node, &empty).await?;
    busy(stage, &scene, &node).await?;
    again(stage, &mut scene, &node).await?;
    ports.remove()?;
    scene.pods.remove("s").await?;
    scene.end().await
}

/// Flows that are sent again and again, so that they stay in the cache.
struct Filling<'a> {
    scene: &'a Scene<'a>,
    child: Option<Child>,
    flows: u32,
}

impl Filling<'_> {
    /// Begins with the first flow again if all were sent.
    fn go_on(&mut self) -> Result<()> {
        let running = match &mut self.child {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        };
        if !running {
            self.child = Some(sprayer_of(self.scene, "s", self.flows, true, &["b", "c"])?);
        }
        Ok(())
    }

    /// Waits for the end of those that are on their way.
    async fn end(self) -> Result<()> {
        let Some(child) = self.child else { return Ok(()) };
        let done = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
        ensure!(done.status.success(), "the sprayer ended with {}", done.status);
        Ok(())
    }
}

/// The agent's use while nothing changes.
async fn idle(stage: &mut Stage<'_>, node: &str, empty: &Figures) -> Result<()> {
    let before = Figures::of(stage.bed, node)?;
    sleep(IDLE).await;
    let after = Figures::of(stage.bed, node)?;
    let share = after.share_since(&before, IDLE);
    let text = format!("{:.1} % of a processor", share * 100.0);
    let outcome = if share <= USED_IDLE { Ok(text) } else { Err(text) };
    stage.checks.check("the agent uses little while nothing changes", outcome);
    let grown = after.resident_kb.saturating_sub(empty.resident_kb);
    let text = format!("{} kB, {grown} kB more than without the ports", after.resident_kb);
    let outcome = if grown <= GROWTH_KB { Ok(text) } else { Err(text) };
    stage.checks.check("the agent's memory for the ports is bounded", outcome);
    Ok(())
}

/// While pods and endpoints change elsewhere.
async fn busy(stage: &mut Stage<'_>, scene: &Scene<'_>, node: &str) -> Result<()> {
    let flows = stage.flows;
    let mut filling = Filling { scene, child: None, flows };
    filling.go_on()?;
    let elsewhere = Elsewhere::begin(stage.bed, &scene.pods.client, BUSY).await?;
    sleep(Duration::from_secs(6)).await;
    scene.pods.log.take();
    let (from, start) = (now(), Instant::now());
    let before = Figures::of(stage.bed, node)?;
    let (mut blind, mut entries) = (0, before.entries);
    while start.elapsed() < WATCHED {
        filling.go_on()?;
        sleep(Duration::from_millis(500)).await;
        let now = Figures::of(stage.bed, node)?;
        blind += u32::from(!now.sees);
        entries = entries.max(now.entries);
    }
    let after = Figures::of(stage.bed, node)?;
    let (time, to) = (start.elapsed(), now());
    let seen = scene.seen().await;
    filling.end().await?;
    let text = format!("{entries} entries at most, of {flows} flows");
    let enough = entries >= LEARNED;
    stage.checks.check("the flow cache is full of flows", if enough { Ok(text) } else { Err(text) });
    let (pods, endpoints) = elsewhere.rates();
    let changes = after.scoped.saturating_sub(before.scoped);
    let text =
        format!("{pods:.0} pods and {endpoints:.0} endpoint changes a second, {changes} changes of br-int");
    let enough = pods > f64::from(BUSY.pods) * 0.5 && changes > 0;
    stage.checks.check("enough changes elsewhere", if enough { Ok(text) } else { Err(text) });
    let text = format!("{blind} times of {}", time.as_millis() / 500);
    let outcome = if blind == 0 { Ok(text) } else { Err(text) };
    stage.checks.check("the monitor of br-int is never lost", outcome);
    let everything = after.everything.saturating_sub(before.everything);
    let text = format!("{everything} of {}", changes + everything);
    let outcome = if everything * 10 <= changes { Ok(text) } else { Err(text) };
    stage.checks.check("few changes end everything", outcome);
    let (median, count) = after.delay_since(&before, 0.5);
    let (most, _) = after.delay_since(&before, 0.99);
    let text = format!("median at most {median:.1?}, 99 % at most {most:.1?}, of {count}");
    let outcome = if most <= FOLLOWED && count > 0 { Ok(text) } else { Err(text) };
    stage.checks.check("a change is followed soon", outcome);
    let share = after.share_since(&before, time);
    let text = format!("{:.1} % of a processor", share * 100.0);
    let outcome = if share <= USED { Ok(text) } else { Err(text) };
    stage.checks.check("the agent uses little of the processors meanwhile", outcome);
    let outcome = match after.divergences - before.divergences {
        0 => Ok(String::new()),
        count => Err(format!("{count} divergences")),
    };
    stage.checks.check("no divergence", outcome);
    for flow in &seen {
        let silence = Duration::from_nanos(flow.longest_silence(from, to));
        let text = format!("{} lost, the longest silence {} ms", flow.lost(), silence.as_millis());
        // OVS is as busy as it can be, and may drop what is sent through it again.
        let outcome = if silence <= SILENCE { Ok(text) } else { Err(text) };
        stage.checks.check(format!("{} goes on", flow.name), outcome);
    }
    let revoked = revoked(stage, scene, &FLOWS.map(|(_, udp, name)| (udp, name))).await;
    stage.checks.check("a revoked flow ends meanwhile", revoked.map_err(|error| format!("{error:#}")));
    elsewhere.end().await
}

/// The agent is killed and started anew: flows go on, and it follows changes again.
async fn again(stage: &mut Stage<'_>, scene: &mut Scene<'_>, node: &str) -> Result<()> {
    scene.pods.log.take();
    let from = now();
    let start = Instant::now();
    scene.pods.restart(node, "node-agent")?;
    scene.pods.agent_ready(node).await?;
    scene.pods.agent_sees(node).await?;
    let took = start.elapsed();
    let seen = scene.seen().await;
    let worst = seen.iter().map(|flow| flow.longest_silence(from, now())).max().context("no flows")?;
    let text = format!("sees every change after {took:.1?}; the longest silence of a flow {} ms", ms(worst));
    let good = took <= AGAIN && Duration::from_nanos(worst) <= SILENCE;
    stage.checks.check("an agent that is started anew takes over", if good { Ok(text) } else { Err(text) });
    let figures = Figures::of(stage.bed, node)?;
    let text = format!("{} divergences", figures.divergences);
    let outcome = if figures.divergences == 0 { Ok(text) } else { Err(text) };
    stage.checks.check("and finds no divergence", outcome);
    Ok(())
}
