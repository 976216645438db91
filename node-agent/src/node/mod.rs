//! [`Node`]: handles and state shared by all modules of the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use supervision::Tasks;

pub mod calls;
pub mod timing;

use crate::datapath::Datapath;
use crate::flow_cache::{Handles, Manager, Settings};
use crate::health::Health;
use crate::kernel::link::Netlink;
use crate::kube::announce::Reports;
use crate::kube::pods::Pods;
use crate::kube::service_names::ServiceNames;
use crate::metrics::Metrics;
use crate::ovs::Ovs;
use calls::Calls;
use timing::Journal;

/// Handles to the node's kernel, OVS and Kubernetes API, and its state. Clones share everything.
#[derive(Debug, Clone)]
pub struct Node {
    /// Netlink in the host network namespace.
    pub netlink: Netlink,
    /// Second netlink connection, on its own thread, for deleting links, which blocks for tens of milliseconds.
    pub reaper: Netlink,
    /// The Open_vSwitch database.
    pub ovs: Ovs,
    /// Pods of this node.
    pub pods: Pods,
    /// Datapath chosen at start.
    pub datapath: Arc<Datapath>,
    /// MTU of pod interfaces in bytes.
    pub mtu: u32,
    /// CNI configuration directory of the container runtime.
    pub cni_conf_dir: PathBuf,
    /// Pods have the cluster's network by this agent; otherwise by another plugin.
    pub default_network: bool,
    /// CNI calls in progress.
    pub calls: Calls,
    /// Finished CNI calls.
    pub journal: Journal,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Conditions and warnings of the node.
    pub health: Health,
    /// Addresses and names of the other nodes.
    pub peers: Peers,
    /// Names of services by address.
    pub service_names: ServiceNames,
    /// Manager of the flow cache.
    pub flow_cache: Manager,
    /// Supervised tasks of the agent.
    pub tasks: Tasks,
}

/// Addresses of the other nodes with their names. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    names: Arc<RwLock<BTreeMap<IpAddr, String>>>,
}

impl Peers {
    /// Replaces all addresses.
    pub fn set(&self, names: BTreeMap<IpAddr, String>) {
        *self.names.write() = names;
    }

    /// Names of all other nodes by address.
    pub fn list(&self) -> BTreeMap<IpAddr, String> {
        self.names.read().clone()
    }
}

impl Node {
    /// Starts the tasks of the flow cache, which run as long as the agent.
    pub fn start_flow_cache(&self, settings: Settings) {
        let handles = Handles {
            ovs: self.ovs.clone(),
            pods: self.pods.clone(),
            netlink: self.netlink.clone(),
            metrics: self.metrics.clone(),
            tasks: self.tasks.clone(),
        };
        self.flow_cache.start(&handles, settings);
    }

    /// Handles for reporting failures of writes to the Node object.
    pub(crate) fn reports(&self) -> Reports {
        Reports { health: self.health.clone(), metrics: self.metrics.clone() }
    }

    /// Conditions that are not met, as `CONDITION: REASON`; empty when ADD can be served.
    pub fn problems(&self) -> Vec<String> {
        problems(&self.health, &self.ovs, &self.pods)
    }
}

/// Reasons why a node with these is not ready, as `CONDITION: REASON`.
pub(crate) fn problems(health: &Health, ovs: &Ovs, pods: &Pods) -> Vec<String> {
    let mut problems = health.problems();
    if !ovs.replica().is_synced() {
        problems.push("ovs: not connected to the Open_vSwitch database".to_owned());
    }
    if ovs.bridge(api::ovn_name::INTEGRATION_BRIDGE).is_none() {
        problems.push("ovs: no bridge br-int; waiting for ovn-controller".to_owned());
    }
    if !pods.is_synced() {
        problems.push("pods: this node's pods are not listed from the Kubernetes API yet".to_owned());
    }
    problems
}
