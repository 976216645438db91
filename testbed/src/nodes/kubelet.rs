//! One node's kubelet, as far as the network can tell: registers the node, keeps its lease, and runs the pods that
//! are bound to it. It may be killed at any moment; the next one takes up what the records say.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::cni::{CONF_DIR, Network};
use super::record::{DIRECTORY, PodRecord};
use super::sandbox::{self, Wanted};
use super::status;
use crate::bed::access;
use crate::config::{node_index, node_ip, underlay_ip6};

/// Pods started at the same time.
const PARALLEL: usize = 30;

/// How often a node says that it is Ready, as a kubelet does whose node does not change.
const AGAIN: Duration = Duration::from_secs(30);
/// How long an answer of the API server is waited for.
const CALL: Duration = Duration::from_secs(5);
/// How long a watch lasts, seconds; one that is silent for longer is made anew.
const WATCH: u32 = 20;
/// Silence of a connection after which it counts as dead.
const SILENCE: Duration = Duration::from_secs(30);

/// Label of pods that this kubelet leaves alone: a benchmark runs their CNI calls itself.
pub const MANUAL_LABEL: &str = "testbed.slipstream.dev/manual";

/// `testbed fake-node`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The node's name.
    #[arg(long)]
    node: String,
    /// How to reach the API server.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The node has an IPv6 address as well.
    #[arg(long)]
    dual_stack: bool,
    /// The node has an IPv6 address alone.
    #[arg(long)]
    ipv6_only: bool,
}

/// A client for the cluster that a kubeconfig names.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    access::client(kubeconfig, None).await
}

struct Node {
    client: Client,
    name: String,
    /// Addresses of the node, the main one first.
    ips: Vec<String>,
    starting: Semaphore,
}

/// A pod that runs or is being started: speaks to its task.
struct Life {
    /// Tells it to stop.
    stop: watch::Sender<bool>,
    /// Tells it that the API server says that the pod is not ready.
    doubted: Arc<Notify>,
}

impl Args {
    /// Runs until it is killed.
    pub async fn run(self) -> Result<()> {
        let Self { node: name, kubeconfig, dual_stack, ipv6_only } = self;
        let index = node_index(&name).with_context(|| format!("{name} is no name of a node"))?;
        let ip = node_ip(index);
        let four = (!ipv6_only).then(|| ip.to_string());
        let six = (dual_stack || ipv6_only).then(|| underlay_ip6(ip).to_string());
        let ips = four.into_iter().chain(six).collect();
        let node = Arc::new(Node {
            client: access::client_of_a_node(&kubeconfig, SILENCE).await?,
            name,
            ips,
            starting: Semaphore::new(PARALLEL),
        });
        let reporting = tokio::spawn(report(Arc::clone(&node)));
        let outcome = node.watch().await;
        reporting.abort();
        outcome
    }
}

/// Keeps the lease, and says whether the node is Ready: it is when its network has a configuration. The control plane calls a node
/// whose lease is old not ready, which only the node takes back, so it says so again now and then.
async fn report(node: Arc<Node>) {
    let mut said: Option<(bool, Instant)> = None;
    let mut renewed: Option<Instant> = None;
    loop {
        let ready = Network::find(Path::new(CONF_DIR)).is_ok_and(|n| n.is_some());
        if said.is_none_or(|(what, when)| what != ready || when.elapsed() > AGAIN) {
            match in_time(status::node(&node.client, &node.name, &node.ips, ready)).await {
                Ok(()) => said = Some((ready, Instant::now())),
                Err(error) => tracing::warn!("status of the node: {error:#}"),
            }
        }
        if renewed.is_none_or(|r| r.elapsed() > Duration::from_secs(10)) {
            match in_time(status::lease(&node.client, &node.name)).await {
                Ok(()) => renewed = Some(Instant::now()),
                Err(error) => tracing::warn!("lease of the node: {error:#}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A call of the API that fails when it takes long: its connection may be one from an address that the node has lost.
async fn in_time(call: impl Future<Output = Result<()>>) -> Result<()> {
    timeout(CALL, call).await.context("no answer from the API server")?
}

/// What the API server says of a pod that runs here, and only the control plane can have written.
fn is_doubted(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let conditions = status.conditions.iter().flatten();
    status.phase.as_deref() == Some("Running")
        && conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "False")
}

impl Node {
    /// Follows the node's pods without end.
    async fn watch(self: Arc<Self>) -> Result<()> {
        let mut running: HashMap<String, Life> = HashMap::new();
        let mut listed: Option<HashMap<String, ()>> = None;
        let mut first = true;
        let query = watcher::Config::default()
            .fields(&format!("spec.nodeName={}", self.name))
            .labels(&format!("{MANUAL_LABEL}!=true"))
            .timeout(WATCH);
        let mut events = std::pin::pin!(watcher(Api::<Pod>::all(self.client.clone()), query));
        loop {
            let event = match events.try_next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::warn!("watch of pods: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            };
            match event {
                Event::Init => listed = Some(HashMap::new()),
                Event::InitApply(pod) => {
                    if let (Some(listed), Some(uid)) = (&mut listed, pod.metadata.uid.clone()) {
                        listed.insert(uid, ());
                    }
                    self.apply(&mut running, pod);
                }
                Event::InitDone => {
                    let listed = listed.take().unwrap_or_default();
                    running.retain(|uid, life| listed.contains_key(uid) || life.stop.send(true).is_err());
                    if std::mem::take(&mut first) {
                        self.collect_garbage(&listed)?;
                    }
                }
                Event::Apply(pod) => self.apply(&mut running, pod),
                Event::Delete(pod) => {
                    if let Some(life) = pod.metadata.uid.as_ref().and_then(|uid| running.remove(uid)) {
                        // Its task may have ended by itself.
                        let _ = life.stop.send(true);
                    }
                }
            }
        }
    }

    fn apply(self: &Arc<Self>, running: &mut HashMap<String, Life>, pod: Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let going = pod.metadata.deletion_timestamp.is_some();
        if let Some(life) = running.get(&uid) {
            if going {
                let _ = life.stop.send(true);
            } else if is_doubted(&pod) {
                life.doubted.notify_one();
            }
            return;
        }
        let (stop, stopped) = watch::channel(going);
        let doubted = Arc::new(Notify::new());
        running.insert(uid, Life { stop, doubted: Arc::clone(&doubted) });
        let node = Arc::clone(self);
        tokio::spawn(async move {
            node.live(&pod, &Wanted::of(&pod), stopped, &doubted).await;
        });
    }

    /// The life of a pod on this node, from start to end.
    async fn live(&self, pod: &Pod, wanted: &Wanted, mut stopped: watch::Receiver<bool>, doubted: &Notify) {
        let end = async move {
            // An error means that the watch has gone, and with it this process.
            let _ = stopped.wait_for(|&s| s).await;
        };
        let begin = async {
            let record = loop {
                match self.take_up_or_start(wanted).await {
                    Ok(record) => break record,
                    Err(error) => {
                        tracing::warn!(namespace = wanted.namespace, name = wanted.name, "start: {error:#}");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            };
            loop {
                let said = || in_time(status::running(&self.client, pod, &record, &self.ips));
                self.until_done("status of the pod", said).await;
                doubted.notified().await;
            }
        };
        tokio::select! {
            // A sandbox that is cut short by deletion is removed by its record, below.
            () = end => {}
            () = begin => {}
        }
        self.until_done("removal of the sandbox", || async {
            for record in PodRecord::all(Path::new(DIRECTORY))?.into_iter().filter(|r| r.uid == wanted.uid) {
                sandbox::stop(&record).await?;
            }
            anyhow::Ok(())
        })
        .await;
        self.until_done("deletion of the pod", || self.forget(wanted)).await;
    }

    async fn take_up_or_start(&self, wanted: &Wanted) -> Result<PodRecord> {
        if let Some(record) = self.take_up(wanted).await? {
            return Ok(record);
        }
        let _permit = self.starting.acquire().await?;
        sandbox::start(wanted, &self.ips).await
    }

    /// The pod's sandbox from before this process, if it was complete.
    async fn take_up(&self, wanted: &Wanted) -> Result<Option<PodRecord>> {
        let records = PodRecord::all(Path::new(DIRECTORY))?;
        let Some(mut record) = records.into_iter().find(|r| r.uid == wanted.uid) else { return Ok(None) };
        if record.addresses.is_empty() {
            self.until_done("removal of half a sandbox", || sandbox::stop(&record)).await;
            return Ok(None);
        }
        sandbox::ensure_server(wanted, &mut record)?;
        Ok(Some(record))
    }

    /// Removes what belongs to no pod: sandboxes whose pod went while no process was here, and namespaces
    /// without a record.
    fn collect_garbage(self: &Arc<Self>, listed: &HashMap<String, ()>) -> Result<()> {
        let records = PodRecord::all(Path::new(DIRECTORY))?;
        for record in records.into_iter().filter(|r| !listed.contains_key(&r.uid)) {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                node.until_done("removal of a leftover sandbox", || sandbox::stop(&record)).await;
            });
        }
        Ok(())
    }

    /// Lets the pod object go, now that nothing of it is here.
    async fn forget(&self, wanted: &Wanted) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &wanted.namespace);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(wanted.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        match pods.delete(&wanted.name, &params).await {
            Ok(_) => Ok(()),
            // Gone, or another pod of that name.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tries until it works.
    async fn until_done<F>(&self, what: &str, mut attempt: impl FnMut() -> F)
    where
        F: Future<Output = Result<()>>,
    {
        let mut pause = Duration::from_millis(100);
        while let Err(error) = attempt().await {
            if let Some(kube::Error::Api(status)) = error.downcast_ref::<kube::Error>()
                && status.code == 404
            {
                return;
            }
            tracing::warn!("{what}: {error:#}; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}
