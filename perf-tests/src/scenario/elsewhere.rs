//! What goes on elsewhere in a cluster until standard input ends: pods of nodes that exist as objects only come and go, and the endpoints of services that
//! nobody asks change.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::kubernetes;
use crate::record::Made;

/// Namespace of all of it.
const NAMESPACE: &str = "bench-elsewhere";
/// Nodes that exist as objects only.
const NODES: u8 = 4;
/// How long a pod lives.
const LIFE: Duration = Duration::from_millis(500);
/// The services whose endpoints change in turn: as many changes may be under way at once.
const SERVICES: [&str; 4] = ["elsewhere-0", "elsewhere-1", "elsewhere-2", "elsewhere-3"];

/// What was counted so far.
#[derive(Debug, Default)]
struct Counts {
    stop: AtomicBool,
    pods: AtomicU32,
    endpoints: AtomicU32,
}

/// Makes nodes and service, says `begun`, and goes on until standard input ends; then prints what was made a second.
pub(crate) async fn run(kubeconfig: &Path, pods: u16, endpoints: u16) -> Result<()> {
    let client = kubernetes::client(kubeconfig).await?;
    kubernetes::ensure_namespace(&client, NAMESPACE).await?;
    let nodes = kubernetes::simulated_nodes(&client, kubeconfig, NODES).await?;
    for name in SERVICES {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]},
        });
        kubernetes::apply(&Api::<Service>::namespaced(client.clone(), NAMESPACE), name, &service).await?;
    }
    say("begun")?;
    let (counts, began) = (Counts::default(), Instant::now());
    let ends = async {
        let read = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await?;
        counts.stop.store(true, Ordering::Relaxed);
        let seconds = began.elapsed().as_secs_f64();
        read.context("standard input")?;
        let rate = |count: &AtomicU32| f64::from(count.load(Ordering::Relaxed)) / seconds;
        anyhow::Ok(Made { pods: rate(&counts.pods), endpoints: rate(&counts.endpoints) })
    };
    let (made, come_and_go, change) = tokio::join!(
        ends,
        come_and_go(&client, &nodes, pods, &counts),
        change_endpoints(&client, endpoints, &counts)
    );
    come_and_go?;
    change?;
    say(&serde_json::to_string(&made?)?)?;
    kubernetes::delete_pods(&client, NAMESPACE).await?;
    kubernetes::delete_simulated_nodes(&client).await
}

fn say(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}

async fn come_and_go(client: &Client, nodes: &[String], rate: u16, counts: &Counts) -> Result<()> {
    if rate == 0 {
        return Ok(());
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut ticks = interval(Duration::from_secs(1) / u32::from(rate));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut lives = JoinSet::new();
    for (number, node) in nodes.iter().cycle().enumerate() {
        ticks.tick().await;
        if counts.stop.load(Ordering::Relaxed) {
            break;
        }
        let (api, pod) = (api.clone(), kubernetes::manual_pod(&format!("brief-{number}"), node)?);
        lives.spawn(async move {
            let made = api.create(&PostParams::default(), &pod).await?;
            tokio::time::sleep(LIFE).await;
            let name = made.metadata.name.context("a pod without a name")?;
            api.delete(&name, &DeleteParams::default().grace_period(0)).await?;
            anyhow::Ok(())
        });
        while let Some(ended) = lives.try_join_next() {
            ended??;
            counts.pods.fetch_add(1, Ordering::Relaxed);
        }
    }
    while let Some(ended) = lives.join_next().await {
        ended??;
    }
    Ok(())
}

async fn change_endpoints(client: &Client, rate: u16, counts: &Counts) -> Result<()> {
    if rate == 0 {
        return Ok(());
    }
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let mut ticks = interval(Duration::from_secs(1) / u32::from(rate));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut changes = JoinSet::new();
    for (number, name) in (0_u32..).zip(SERVICES.into_iter().cycle()) {
        ticks.tick().await;
        if counts.stop.load(Ordering::Relaxed) {
            break;
        }
        // Addresses that no pod has: the backends of a service need not be pods.
        let endpoints: Vec<_> = (0..=number % 3)
            .map(|last| json!({"addresses": [format!("192.0.2.{}", 10 + last)], "conditions": {"ready": true}}))
            .collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        });
        let api = api.clone();
        changes.spawn(async move { kubernetes::apply(&api, name, &slice).await });
        while changes.len() >= SERVICES.len() {
            changes.join_next().await.context("a change under way")???;
            counts.endpoints.fetch_add(1, Ordering::Relaxed);
        }
    }
    while let Some(ended) = changes.join_next().await {
        ended??;
    }
    Ok(())
}
