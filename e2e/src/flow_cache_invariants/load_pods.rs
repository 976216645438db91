//! The pods of a run with the load tool in each of them, and what is done to them and to their nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::annotation::POD_NETWORKS;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use testbed::cluster::config::Datapath;
use testbed::cluster::{Actor, Agent, Bed};
use testbed::loader::{Loader, Log};
use testbed::nodes::kubelet;
use testbed::pod::with_image;
use testbed::tools::load::{Dial, Order, PORT};
use testbed::traffic::Place;

/// Namespace of all pods of these tests.
pub(super) const NAMESPACE: &str = "laws";
/// How long a pod may take to run or to go.
const POD: Duration = Duration::from_secs(60);

struct Member {
    ip: IpAddr,
    loader: Loader,
}

/// Pods by name.
pub(super) struct LoadPods<'a> {
    pub(super) bed: &'a Bed,
    pub(super) client: Client,
    pub(super) log: Log,
    pause_ms: u64,
    members: BTreeMap<String, Member>,
}

/// A pod to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct New<'a> {
    pub(super) name: &'a str,
    pub(super) node: &'a str,
    /// Value of the label `role`.
    pub(super) role: &'a str,
    /// Further annotations.
    pub(super) annotations: &'a [(&'a str, &'a str)],
}

impl<'a> LoadPods<'a> {
    /// Connects to the API server, and makes the namespace. The calling thread must be in the network of `central`.
    pub(super) async fn new(bed: &'a Bed, pause_ms: u64) -> Result<Self> {
        let client = kubelet::client(&bed.config().kubeconfig("admin")).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let api: Api<Namespace> = Api::all(client.clone());
        let patch = Patch::Apply(&namespace);
        api.patch(NAMESPACE, &PatchParams::apply("laws").force(), &patch).await.context("the namespace")?;
        Ok(Self { bed, client, log: Log::default(), pause_ms, members: BTreeMap::new() })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Only the controller may give a pod its address.
    async fn pods_as_controller(&self) -> Result<Api<Pod>> {
        let client = self.bed.client(Some(&Actor::controller().with_all_rights())).await?;
        Ok(Api::namespaced(client, NAMESPACE))
    }

    /// Makes a pod, waits until it runs, and starts its load tool.
    pub(super) async fn add(&mut self, new: New<'_>) -> Result<IpAddr> {
        let New { name, node, role, annotations } = new;
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "labels": {"role": role}, "annotations": annotations,
            },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        let object: Pod = serde_json::from_value(with_image(self.bed, object)?)?;
        let pods = if annotations.contains_key(POD_NETWORKS) {
            self.pods_as_controller().await?
        } else {
            self.pods()
        };
        pods.create(&PostParams::default(), &object).await.with_context(|| format!("pod {name}"))?;
        let end = Instant::now() + POD;
        let ip = loop {
            let pod = self.pods().get(name).await?;
            let status = pod.status.unwrap_or_default();
            match (status.phase.as_deref(), status.pod_ip) {
                (Some("Running"), Some(ip)) => break ip.parse()?,
                (phase, _) if Instant::now() > end => bail!("pod {name} does not run: {phase:?}"),
                _ => sleep(Duration::from_millis(30)).await,
            }
        };
        let place = Place::Pod { node: node.into(), namespace: NAMESPACE.into(), name: name.into() };
        let loader = Loader::start(self.bed, &place, name, self.pause_ms, &self.log)?;
        self.members.insert(name.to_owned(), Member { ip, loader });
        Ok(ip)
    }

    /// Starts the load tool of a host, as a client.
    pub(super) fn add_host(&mut self, host: &str, ip: IpAddr) -> Result<()> {
        let loader = Loader::start(self.bed, &Place::Host(host.into()), host, self.pause_ms, &self.log)?;
        self.members.insert(host.to_owned(), Member { ip, loader });
        Ok(())
    }

    /// Ends the load tool of a pod, deletes the pod, and waits until it is gone.
    pub(super) async fn remove(&mut self, name: &str) -> Result<()> {
        drop(self.members.remove(name));
        self.pods().delete(name, &DeleteParams::default()).await.with_context(|| format!("pod {name}"))?;
        let end = Instant::now() + POD;
        while self.pods().get_opt(name).await?.is_some() {
            if Instant::now() > end {
                bail!("pod {name} does not go");
            }
            sleep(Duration::from_millis(30)).await;
        }
        Ok(())
    }

    /// Gives a pod another role.
    pub(super) async fn relabel(&self, name: &str, role: &str) -> Result<()> {
        self.patch(name, json!({"metadata": {"labels": {"role": role}}})).await
    }

    /// Merges something into a pod.
    pub(super) async fn patch(&self, name: &str, change: Value) -> Result<()> {
        self.pods().patch(name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        Ok(())
    }

    /// A pod's address.
    pub(super) fn ip(&self, name: &str) -> Result<IpAddr> {
        Ok(self.members.get(name).with_context(|| format!("there is no pod {name}"))?.ip)
    }

    /// Begins a flow, or begins it again.
    pub(super) fn dial(&mut self, flow: u32, from: &str, to: &str, udp: bool) -> Result<()> {
        let to = SocketAddr::new(self.ip(to)?, PORT);
        self.dial_address(flow, from, to, udp)
    }

    /// The same to any address.
    pub(super) fn dial_address(&mut self, flow: u32, from: &str, to: SocketAddr, udp: bool) -> Result<()> {
        self.order(from, &Order::Dial(Dial { flow, udp, to }))
    }

    /// Gives an order to the load tool of a pod.
    pub(super) fn order(&mut self, pod: &str, order: &Order) -> Result<()> {
        let member = self.members.get_mut(pod).with_context(|| format!("there is no pod {pod}"))?;
        member.loader.order(order).with_context(|| format!("pod {pod}"))
    }

    /// Kills a process of a node, and starts it again.
    pub(super) fn restart(&self, node: &str, process: &str) -> Result<()> {
        tokio::task::block_in_place(|| self.bed.host(node).restart(process))
    }

    /// Kills a process of a node.
    pub(super) fn kill(&self, node: &str, process: &str) -> Result<()> {
        tokio::task::block_in_place(|| self.bed.host(node).kill(process))
    }

    /// The agent of a node.
    pub(super) fn agent<'n>(&'n self, node: &'n str) -> Agent<'n> {
        self.bed.agent(node)
    }

    /// Whether the agent of a node sees every change of OVS, or the node has no cache.
    pub(super) fn sees(&self, node: &str) -> bool {
        let without = self.bed.config().datapath == Datapath::Ovs;
        let sees = |status: Value| without || status["cache"]["sight"] == "open";
        tokio::task::block_in_place(|| self.agent(node).status()).is_ok_and(sees)
    }

    /// Waits until the agent of a node sees every change of OVS.
    pub(super) async fn agent_sees(&self, node: &str) -> Result<()> {
        let end = Instant::now() + POD;
        while !self.sees(node) {
            if Instant::now() > end {
                bail!("the agent of {node} does not see what OVS does: {:?}", self.agent(node).status());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Waits until the agent of a node is ready.
    pub(super) async fn agent_ready(&self, node: &str) -> Result<()> {
        let end = Instant::now() + POD;
        loop {
            match tokio::task::block_in_place(|| self.agent(node).page("/readyz")) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => return Err(error.context("the agent is not ready")),
                Err(_) => sleep(Duration::from_millis(30)).await,
            }
        }
    }
}
