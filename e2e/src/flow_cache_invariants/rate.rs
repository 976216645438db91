//! How many requests a second bystanders get through while pods come and go elsewhere, against agents that are blind to changes of flows:
//! the bound on a machine that also runs the control plane. Run by hand, as it measures: `taskset -c 1 e2e flow-cache-invariants --only
//! rate`, so that everything but the two ends is kept to the other processor.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tokio::time::sleep;

use super::load_pods::{LoadPods, NAMESPACE, New};
use super::{Sabotage, Stage};
use crate::demo::echoes::{self, Echo, PORT};
use crate::scale::elsewhere::{Elsewhere, Rates};
use testbed::cluster::start_agent_in;
use testbed::traffic::Place;
use testbed::ui::say;

/// Pods a second.
const PODS: [u32; 2] = [20, 50];
/// Pairs of measurements for each.
const ROUNDS: usize = 3;
/// One measurement.
const SECONDS: &str = "5";
/// Processor of both ends.
const CPU: &str = "0";
/// After the start of agents, and of what goes on elsewhere.
const SETTLE: Duration = Duration::from_secs(3);

/// Requests a second by pod IP and by cluster IP.
type Rate = [f64; 2];

/// Runs it and says what came of it.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let nodes = stage.bed.config().node_names();
    let mut pods = LoadPods::new(stage.bed, 100).await?;
    for (name, node) in [("a", &nodes[0]), ("b", &nodes[1])] {
        pods.add(New { name, node, role: "none", annotations: &[] }).await?;
    }
    pods.patch("b", json!({"metadata": {"labels": {"rate": "yes"}}})).await?;
    let _echo = Echo::at(stage.bed, &place(&nodes[1], "b"))?;
    let service: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "rate", "namespace": NAMESPACE},
        "spec": {"selector": {"rate": "yes"}, "ports": [{"port": PORT, "targetPort": PORT, "protocol": "TCP"}]},
    }))?;
    let services: Api<Service> = Api::namespaced(pods.client.clone(), NAMESPACE);
    let made = services.create(&PostParams::default(), &service).await?;
    let address = made.spec.and_then(|spec| spec.cluster_ip).context("no address")?;
    let to = [pods.ip("b")?.to_string(), address];
    for others in PODS {
        let mut ratios: [Vec<f64>; 2] = Default::default();
        for round in 0..ROUNDS {
            let mut rates: [Rate; 2] = Default::default();
            for turn in 0..2 {
                let blind = (turn + round) % 2 == 1;
                agents(stage, &pods, &nodes, blind).await?;
                rates[usize::from(blind)] = measure(stage, &pods, &nodes[0], &to, others).await?;
            }
            let [sees, blind] = rates;
            say(format_args!(
                "  {others} pods/s, round {round}: by pod IP and cluster IP {sees:.0?}, blind {blind:.0?}"
            ));
            for (at, ratios) in ratios.iter_mut().enumerate() {
                ratios.push(sees[at] / blind[at]);
            }
        }
        for (what, mut ratios) in ["pod IP", "cluster IP"].into_iter().zip(ratios) {
            ratios.sort_by(f64::total_cmp);
            let (least, most) = (ratios.first().copied(), ratios.last().copied());
            let median = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
            let text = format!("{median:.3} of blind agents ({least:.3?} to {most:.3?})");
            stage.checks.check(
                format!("{others} pods/s elsewhere, {what}"),
                if median >= 0.95 { Ok(text) } else { Err(text) },
            );
        }
    }
    agents(stage, &pods, &nodes, false).await?;
    services.delete("rate", &DeleteParams::default()).await?;
    for name in ["a", "b"] {
        pods.remove(name).await?;
    }
    Ok(())
}

fn place(node: &str, pod: &str) -> Place {
    Place::Pod { node: node.into(), namespace: NAMESPACE.into(), name: pod.into() }
}

/// Replaces the agents.
async fn agents(stage: &Stage<'_>, pods: &LoadPods<'_>, nodes: &[String], blind: bool) -> Result<()> {
    let (flags, environment) = if blind { Sabotage::NoBump.agent() } else { (&[][..], Vec::new()) };
    for node in &nodes[..2] {
        pods.kill(node, "node-agent")?;
        tokio::task::block_in_place(|| start_agent_in(stage.bed, node, flags, &environment))?;
    }
    for node in &nodes[..2] {
        pods.agent_ready(node).await?;
        pods.agent_sees(node).await?;
    }
    sleep(SETTLE).await;
    Ok(())
}

async fn measure(
    stage: &Stage<'_>,
    pods: &LoadPods<'_>,
    node: &str,
    to: &[String; 2],
    others: u32,
) -> Result<Rate> {
    let elsewhere = Elsewhere::begin(stage.bed, &pods.client, Rates { pods: others, endpoints: 0 }).await?;
    sleep(SETTLE).await;
    let mut rates = Rate::default();
    for (rate, to) in rates.iter_mut().zip(to) {
        let mut client = echoes::client(stage.bed, &place(node, "a"))?;
        client.args(["--count", "100000000", "--seconds", SECONDS, "--cpu", CPU, to, &PORT.to_string()]);
        let output = tokio::task::spawn_blocking(move || client.stdin(Stdio::null()).output()).await??;
        let seen = echoes::round_trips(&String::from_utf8_lossy(&output.stdout))?;
        ensure!(seen.answers > 0, "no answer from {to}: {seen:?}");
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        {
            *rate = seen.answers as f64 / SECONDS.parse::<f64>()?;
        }
    }
    let (made, _) = elsewhere.rates();
    ensure!(
        others == 0 || made > f64::from(others) * 0.8,
        "only {made:.1} pods a second were made, not {others}"
    );
    elsewhere.end().await?;
    Ok(rates)
}
