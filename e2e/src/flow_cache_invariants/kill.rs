//! Law 4: the agent may die. It is killed with SIGKILL, stays down, and comes back; and it is restarted, which replaces the programs by
//! new ones, as an upgrade does. All that under TCP and UDP flows: no TCP message takes longer than a limit, no flow is silent for
//! longer than that, and no UDP message is lost.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::scene::{Scene, Seen};
use super::{Stage, nanos};
use testbed::exec;
use testbed::tools::load::now;
use testbed::ui::say;

/// How long a TCP message may take.
const STALL: Duration = Duration::from_millis(200);
/// How long the agent stays down.
const AWAY: Duration = Duration::from_secs(2);
/// How long the flows are watched afterwards.
const AFTER: Duration = Duration::from_secs(3);
/// How often each thing is done.
const ROUNDS: u32 = 3;

/// Management socket of the gateway bridge.
const GATEWAY: &str = "unix:/run/openvswitch/breth0.mgmt";

fn ms(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64() * 1e3
}

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let scene = Scene::new(stage.bed).await?;
    sleep(AFTER).await;
    for seen in scene.seen().await {
        say(format_args!(
            "  undisturbed: {}: {} messages, the longest took {:.1} ms, {} lost",
            seen.name,
            seen.arrivals.len(),
            ms(seen.longest_way()),
            seen.lost()
        ));
    }
    for round in 1..=ROUNDS {
        for node in scene.nodes.clone() {
            let from = now();
            scene.pods.kill(&node, "node-agent")?;
            sleep(AWAY).await;
            let what = format!("{round}: the agent of {node} is killed and away");
            judge(stage, &what, from..=now(), &scene.seen().await);
            for what in ["comes back", "is replaced"] {
                let from = now();
                scene.pods.restart(&node, "node-agent")?;
                scene.pods.agent_ready(&node).await?;
                sleep(AFTER).await;
                let what = format!("{round}: the agent of {node} {what}");
                judge(stage, &what, from..=now(), &scene.seen().await);
            }
        }
    }
    let nodes = scene.nodes.clone();
    for node in nodes {
        let outcome = without_flows(stage, &scene, &node).await.map_err(|error| format!("{error:#}"));
        stage.checks.check(
            format_args!("the gateway bridge of {node} had no flow when its agent came back"),
            outcome,
        );
    }
    scene.end().await
}

/// The gateway bridge loses all flows while the agent is away. The agent has to reach the API server to know what the flows are, and
/// reaches it only over this bridge.
async fn without_flows(stage: &Stage<'_>, scene: &Scene<'_>, node: &str) -> Result<String> {
    let ofctl = |command| stage.bed.ovs(node, "ovs-ofctl", &[command, GATEWAY]);
    let count = || anyhow::Ok(ofctl("dump-flows")?.lines().filter(|line| line.contains("actions=")).count());
    let before = count()?;
    scene.pods.kill(node, "node-agent")?;
    ofctl("del-flows")?;
    let gone = count()?;
    ensure!(gone == 0, "{gone} flows were not deleted");
    scene.pods.restart(node, "node-agent")?;
    scene.pods.agent_ready(node).await?;
    exec::retry(AFTER, "the flows", || {
        let after = count()?;
        ensure!(after == before, "{after} flows of {before} are back");
        Ok(format!("its {after} flows are back"))
    })
}

/// `time`: when the flows were watched.
fn judge(stage: &mut Stage<'_>, what: &str, time: RangeInclusive<u64>, flows: &[Seen]) {
    let limit = nanos(STALL);
    let mut wrong = Vec::new();
    let (mut longest, mut lost) = (0, 0);
    for seen in flows {
        if seen.arrivals.is_empty() {
            wrong.push(format!("{}: nothing arrived", seen.name));
        } else if seen.udp && seen.lost() > 0 {
            wrong.push(format!("{}: {} of {} lost", seen.name, seen.lost(), seen.arrivals.len()));
        } else if !seen.udp && seen.longest_way() > limit {
            wrong.push(format!("{}: a message took {:.0} ms", seen.name, ms(seen.longest_way())));
        }
        // A flow that has ended, or lost the way for answers, takes no time for the messages that never arrive.
        let silence = seen.longest_silence(*time.start(), *time.end());
        if silence > limit {
            wrong.push(format!("{}: silent for {:.0} ms", seen.name, ms(silence)));
        }
        if seen.udp { lost += seen.lost() } else { longest = longest.max(seen.longest_way()) }
    }
    let good = format!("TCP took {:.0} ms at most, {lost} UDP messages lost", ms(longest));
    stage.checks.check(what, if wrong.is_empty() { Ok(good) } else { Err(wrong.join("; ")) });
}
