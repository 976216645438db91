//! The clusters that are measured: two nodes each, and the pods of the benchmark.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::{Value, json};
use testbed::cluster::config::{Config, Datapath};
use testbed::cluster::{Bed, start_agent_in, start_agent_with};
use testbed::{exec, pod};

use super::cell::Route;
use super::place::{self, Place};

/// Namespace of the pods.
pub(crate) const NAMESPACE: &str = "bench";
/// The pods and their nodes.
const PODS: [(&str, &str); 3] = [("near", "n1"), ("beside", "n1"), ("far", "n2")];
/// The process by which packets go that the programs leave to OVS.
const OVS: &str = "ovs-vswitchd";
/// How long pods may take to run.
const START: Duration = Duration::from_secs(60);
/// Hidden flag of the agent: programs without counters and audit.
const WITHOUT_COUNTERS: &str = "--bench-without-counters";

/// What the agents of a control do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Sabotage {
    /// Changed flows do not make anything invalid: a revoked policy must be late.
    NoBump,
    /// Entries are not refreshed for a minute: with user space gone, packets must go on.
    NoRefresh,
}

/// A running cluster with its pods; taken down when it is dropped, unless it was there before.
pub(crate) struct Cluster {
    bed: Option<Bed>,
    ours: bool,
}

impl Cluster {
    /// One that runs already; pods are made in it.
    pub(super) fn there(name: &str) -> Result<Self> {
        Self::open(name, false)
    }

    /// One that another program has brought up for this run; pods are made in it, and it is taken down when it is dropped.
    pub(super) fn taken(name: &str) -> Result<Self> {
        Self::open(name, true)
    }

    fn open(name: &str, ours: bool) -> Result<Self> {
        let cluster = Self { bed: Some(Bed::open(name)?), ours };
        cluster.make_pods()?;
        Ok(cluster)
    }

    /// Removes what an earlier run has left of a cluster.
    pub(super) fn remove(name: &str) -> Result<()> {
        Bed::rest(name)?.map_or(Ok(()), Bed::down)
    }

    /// Brings one up, in place of what an earlier run has left.
    pub(crate) fn up(name: &str, datapath: Datapath) -> Result<Self> {
        let cluster = Self::without_pods(name, datapath)?;
        cluster.make_pods()?;
        Ok(cluster)
    }

    /// One whose programs neither count nor compare. None if the agents know of no such thing.
    pub(super) fn uncounted(name: &str) -> Result<Option<Self>> {
        let cluster = Self::without_pods(name, Datapath::Auto)?;
        let bed = cluster.bed()?;
        for node in bed.config().node_names() {
            let host = bed.host(&node);
            host.kill("node-agent")?;
            start_agent_with(bed, &node, &[WITHOUT_COUNTERS])?;
            std::thread::sleep(Duration::from_millis(1500));
            if let Err(error) = host.check_running("node-agent") {
                // clap's exit code for a flag that it does not know.
                return if error.to_string().contains("exit code 2") { Ok(None) } else { Err(error) };
            }
        }
        cluster.make_pods()?;
        Ok(Some(cluster))
    }

    /// One whose agents do something wrong.
    pub(super) fn sabotaged(name: &str, sabotage: Sabotage) -> Result<Self> {
        let cluster = Self::without_pods(name, Datapath::Auto)?;
        let bed = cluster.bed()?;
        let (flags, environment): (&[&str], &[(&str, &str)]) = match sabotage {
            Sabotage::NoBump => (&[], &[("SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS", "1")]),
            Sabotage::NoRefresh => (&["--refresh-ms=60000"], &[]),
        };
        for node in bed.config().node_names() {
            bed.host(&node).kill("node-agent")?;
            start_agent_in(bed, &node, flags, environment)?;
        }
        cluster.make_pods()?;
        Ok(cluster)
    }

    fn without_pods(name: &str, datapath: Datapath) -> Result<Self> {
        Self::remove(name)?;
        // As in a cluster outside tests.
        let bed = Bed::up(Config { datapath, verify_interval: 180, ..Config::new(name, 2)? })?;
        Ok(Self { bed: Some(bed), ours: true })
    }

    fn make_pods(&self) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.bed()?.apply(&namespace.to_string())?;
        self.add_pods(&PODS)
    }

    /// Makes pods, each on a node, and waits until they run.
    pub(super) fn add_pods(&self, pods: &[(&str, &str)]) -> Result<()> {
        let manifest = |(name, node): &(&str, &str)| pod::manifest(NAMESPACE, name, Some(node));
        self.add_manifests(&pods.iter().map(manifest).collect::<Vec<_>>())
    }

    /// Makes pods as they stand, and waits until they run.
    pub(super) fn add_manifests(&self, pods: &[Value]) -> Result<()> {
        let bed = self.bed()?;
        let mut items = Vec::new();
        for pod in pods {
            items.push(pod::with_image(bed, pod.clone())?);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        exec::input_output(bed.kubectl_command()?.args(["apply", "-f", "-"]), &list.to_string())?;
        pod::wait_ready(bed, NAMESPACE, START)
    }

    pub(crate) fn bed(&self) -> Result<&Bed> {
        self.bed.as_ref().context("the cluster is down")
    }

    /// Whether packets to this port go by the cache of a node now.
    pub(super) fn is_cached(&self, node: &str, port: u16) -> Result<bool> {
        let flows: Vec<Value> = self.bed()?.agent(node).slipctl_json(&["flows", "--limit", "100000"])?;
        Ok(flows.iter().any(|flow| is_used(flow, port)))
    }

    /// From a pod of n1 to one of n2.
    pub(super) fn across(&self) -> Result<Route> {
        self.route("far")
    }

    /// Between two pods of n1.
    pub(super) fn same_node(&self) -> Result<Route> {
        self.route("beside")
    }

    fn route(&self, to: &str) -> Result<Route> {
        let (client, _) = self.pod("near")?;
        let (server, address) = self.pod(to)?;
        Ok(Route { client, server, address, by: None, part_of_path: self.ovs()? })
    }

    /// The processes of OVS of all nodes.
    pub(super) fn ovs(&self) -> Result<Vec<i32>> {
        let bed = self.bed()?;
        let mut all = Vec::new();
        for node in bed.config().node_names() {
            all.extend(place::processes_of(&bed.host(&node), OVS)?);
        }
        Ok(all)
    }

    /// One of the pods, and its IPv4 address.
    pub(super) fn pod(&self, name: &str) -> Result<(Place, String)> {
        let (_, node) = PODS.iter().find(|pod| pod.0 == name).context("a pod of the benchmark")?;
        Place::pod(self.bed()?, node, NAMESPACE, name)
    }

    /// Ends it; the error says what is left.
    pub(crate) fn down(mut self) -> Result<()> {
        self.bed.take().filter(|_| self.ours).map_or(Ok(()), Bed::down)
    }
}

/// Whether a flow of slipctl's list goes to this port, is valid, and was used.
pub(crate) fn is_used(flow: &Value, port: u16) -> bool {
    let to = flow["destination"].as_str().is_some_and(|address| address.ends_with(&format!(":{port}")));
    to && flow["valid"] == true && flow["packets"].as_u64().is_some_and(|packets| packets > 0)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Reached with a cluster only after an error, which is what the user must see.
        if let Some(bed) = self.bed.take().filter(|_| self.ours) {
            let _ = bed.down();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_counts_as_used_when_it_is_valid_and_had_packets() {
        let flow = |valid: bool, packets: u64| json!({"protocol": "udp", "source": "10.0.0.1:7401", "destination": "10.0.0.2:7402", "valid": valid, "packets": packets});
        assert!(is_used(&flow(true, 9), 7402));
        assert!(!is_used(&flow(true, 9), 7401));
        assert!(!is_used(&flow(false, 9), 7402));
        assert!(!is_used(&flow(true, 0), 7402));
    }
}
