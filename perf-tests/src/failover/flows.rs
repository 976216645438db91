//! The flows that run all the time: from one pod to another of its node, to one of the other node, and to a service.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::json;
use testbed::bed::Bed;
use testbed::exec::retry;
use testbed::loader::{Loader, Log};
use testbed::tools::load::{Arrival, Dial, Order, PORT, now};
use testbed::traffic::Place;

use super::loss::Loss;
use crate::fastpath::cluster::{Cluster, NAMESPACE};

/// Milliseconds between two messages of a flow.
const PAUSE_MS: u64 = 1;
/// How long it may take until all flows run.
const STEADY: Duration = Duration::from_secs(60);
/// A flow runs if something of it arrived so lately.
const LATELY: Duration = Duration::from_millis(200);
/// What arrives is reported that late at most.
const REPORTED: Duration = Duration::from_millis(150);
/// Name of the service, whose backend is a pod of the other node.
const SERVICE: &str = "far";

/// Where a flow leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    SameNode,
    OtherNode,
    ClusterIp,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::SameNode, Self::OtherNode, Self::ClusterIp];

    /// The pod that receives, and its node.
    const fn receiver(self) -> (&'static str, &'static str) {
        match self {
            Self::SameNode => ("beside", "n1"),
            Self::OtherNode | Self::ClusterIp => ("far", "n2"),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameNode => "same node",
            Self::OtherNode => "other node",
            Self::ClusterIp => "cluster IP",
        })
    }
}

/// One flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    pub(super) way: Way,
    pub(super) udp: bool,
}

impl Flow {
    /// All of them; the place in this list is the flow's number.
    pub(super) fn all() -> Vec<Self> {
        Way::ALL.into_iter().flat_map(|way| [true, false].map(|udp| Self { way, udp })).collect()
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.udp { "UDP" } else { "TCP" }, self.way)
    }
}

/// All flows, running. They end with this.
pub(super) struct Running {
    log: Log,
    /// What arrived since it was forgotten last, by the flow's number.
    seen: BTreeMap<u32, Vec<Arrival>>,
    /// The pods' load tools.
    _ends: Vec<Loader>,
}

impl Running {
    /// Begins them between the pods of a cluster, and waits until all run.
    pub(super) fn start(cluster: &Cluster) -> Result<Self> {
        let service = service(cluster.bed()?)?;
        let log = Log::default();
        let end = |name: &str, node: &str| {
            let place = Place::Pod { node: node.into(), namespace: NAMESPACE.into(), name: name.into() };
            Loader::start(cluster.bed()?, &place, name, PAUSE_MS, &log)
        };
        let mut client = end("near", "n1")?;
        let mut ends = Vec::new();
        for (pod, node) in [Way::SameNode, Way::OtherNode].map(Way::receiver) {
            ends.push(end(pod, node)?);
        }
        for (number, flow) in (0..).zip(Flow::all()) {
            let ip = match flow.way {
                Way::ClusterIp => service,
                way => address(cluster.bed()?, way.receiver().0)?,
            };
            let to = SocketAddr::new(ip, PORT);
            client.order(&Order::Dial(Dial { flow: number, udp: flow.udp, to }))?;
        }
        ends.push(client);
        let mut running = Self { log, seen: BTreeMap::new(), _ends: ends };
        running.wait()?;
        Ok(running)
    }

    /// Waits until something of every flow has just arrived.
    pub(super) fn wait(&mut self) -> Result<()> {
        retry(STEADY, "all flows run", || {
            self.collect();
            let since = now().saturating_sub(nanos(LATELY + REPORTED));
            let runs = |number| {
                let last = self.seen.get(&number).and_then(|list| list.last());
                last.is_some_and(|last| last.at >= since)
            };
            let missing = (0..).zip(Flow::all()).find(|&(number, _)| !runs(number));
            missing.map_or(Ok(()), |(_, flow)| bail!("nothing arrives of {flow}"))
        })
    }

    /// Forgets what has arrived until now.
    pub(super) fn forget(&mut self) {
        self.collect();
        self.seen.clear();
    }

    /// What each flow lost between two times, of which the second was just now.
    pub(super) fn losses(&mut self, begin: u64, end: u64) -> Result<Vec<(Flow, Loss)>> {
        self.collect();
        (0..)
            .zip(Flow::all())
            .map(|(number, flow)| {
                let list = self.seen.get(&number).map(Vec::as_slice).unwrap_or_default();
                let loss = Loss::of(list, begin, end);
                Ok((flow, loss.with_context(|| format!("nothing arrived of {flow}"))?))
            })
            .collect()
    }

    /// Waits until everything that has arrived by now is reported, and takes it.
    fn collect(&mut self) {
        std::thread::sleep(REPORTED);
        for (flow, arrivals) in self.log.take() {
            self.seen.entry(flow).or_default().extend(arrivals);
        }
    }
}

/// Nanoseconds of a time; far below what 64 bits hold.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The IPv4 address of a pod.
fn address(bed: &Bed, pod: &str) -> Result<IpAddr> {
    let ip = bed.field(&format!("pod/{pod}"), NAMESPACE, ".status.podIP")?;
    ip.parse().with_context(|| format!("address {ip:?} of the pod {pod}"))
}

/// Makes the service; its address.
fn service(bed: &Bed) -> Result<IpAddr> {
    let ports: Vec<_> = ["TCP", "UDP"]
        .map(|protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": PORT}))
        .into();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"selector": {"app": "far"}, "ports": ports},
    });
    bed.apply(&service.to_string())?;
    let ips = bed.cluster_ips(NAMESPACE, SERVICE)?;
    ips.into_iter().find(IpAddr::is_ipv4).context("the service has no IPv4 address")
}
