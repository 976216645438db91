//! What goes on elsewhere in a cluster: pods of nodes that exist as objects only come and go, and the endpoints of services that nobody
//! uses change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::policy::labels;
use super::stubs::{self, NAMESPACE};
use super::world::Pod;
use super::{load, node};
use testbed::cluster::Bed;

/// Nodes that exist as objects only.
const NODES: usize = 4;
/// How long a pod lives.
const LIFE: Duration = Duration::from_millis(500);
/// The service whose endpoints change.
const SERVICE: &str = "elsewhere";
/// Owner of the fields that are written.
const OWNER: &str = "elsewhere";

/// Changes a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Pods that are made; each is deleted half a second later.
    pub(crate) pods: u32,
    /// Changes of a service's endpoints.
    pub(crate) endpoints: u32,
}

/// What goes on; it ends with [`Elsewhere::end`].
#[derive(Debug)]
pub(crate) struct Elsewhere {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU32>,
    moved: Arc<AtomicU32>,
    tasks: Vec<JoinHandle<Result<()>>>,
    began: Instant,
}

impl Elsewhere {
    /// Makes the nodes and the service, and begins.
    pub(crate) async fn begin(bed: &Bed, client: &Client, rates: Rates) -> Result<Self> {
        stubs::create(bed, client, NODES).await?;
        load::nodes(client, NODES).await?;
        service(client).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let [made, moved] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let mut tasks = Vec::new();
        if rates.pods > 0 {
            tasks.push(tokio::spawn(pods(client.clone(), rates.pods, Arc::clone(&stop), Arc::clone(&made))));
        }
        if rates.endpoints > 0 {
            let of = endpoints(client.clone(), rates.endpoints, Arc::clone(&stop), Arc::clone(&moved));
            tasks.push(tokio::spawn(of));
        }
        Ok(Self { stop, made, moved, tasks, began: Instant::now() })
    }

    /// Pods that were made and endpoints that were changed so far, a second.
    pub(crate) fn rates(&self) -> (f64, f64) {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = |count: &AtomicU32| f64::from(count.load(Ordering::Relaxed)) / seconds;
        (rate(&self.made), rate(&self.moved))
    }

    /// Ends it; fails with what went wrong meanwhile.
    pub(crate) async fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await??;
        }
        Ok(())
    }
}

fn pod(number: u32) -> Pod {
    let at = usize::try_from(number).unwrap_or_default() % NODES;
    Pod {
        namespace: NAMESPACE.to_owned(),
        name: format!("brief-{number}"),
        node: node::name(at),
        labels: labels([("brief", "yes")]),
    }
}

async fn pods(client: Client, rate: u32, stop: Arc<AtomicBool>, made: Arc<AtomicU32>) -> Result<()> {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut lives = tokio::task::JoinSet::new();
    for number in 0.. {
        ticks.tick().await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let client = client.clone();
        lives.spawn(async move {
            let pod = pod(number);
            let pods = load::of_pods(&client, &pod);
            pods.create(&PostParams::default(), &pod.object()?).await?;
            tokio::time::sleep(LIFE).await;
            pods.delete(&pod.name, &DeleteParams::default().grace_period(0)).await?;
            anyhow::Ok(())
        });
        made.fetch_add(1, Ordering::Relaxed);
        while let Some(ended) = lives.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = lives.join_next().await {
        ended??;
    }
    Ok(())
}

async fn service(client: &Client) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]},
    });
    let api: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let params = PatchParams::apply(OWNER).force();
    api.patch(SERVICE, &params, &Patch::Apply(&object)).await.context("the service elsewhere")?;
    Ok(())
}

async fn endpoints(client: Client, rate: u32, stop: Arc<AtomicBool>, moved: Arc<AtomicU32>) -> Result<()> {
    let api: Api<EndpointSlice> = Api::namespaced(client, NAMESPACE);
    let mut ticks = interval(Duration::from_secs(1) / rate);
    for number in 0_u32.. {
        ticks.tick().await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // Addresses that no pod of a test has: the backends of a service need not be pods.
        let addresses: Vec<_> = (0..=number % 3).map(|last| format!("192.0.2.{}", 10 + last)).collect();
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|ip| json!({"addresses": [ip], "nodeName": node::name(0), "conditions": {"ready": true}}))
            .collect();
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE,
                         "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        });
        let params = PatchParams::apply(OWNER).force();
        api.patch(SERVICE, &params, &Patch::Apply(&object)).await.context("the endpoints elsewhere")?;
        moved.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
