//! What the parts of the agent share: handles to the kernel, OVS and the API, and how the node is.

use std::collections::BTreeMap;
use std::net::IpAddr;
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
use crate::metrics::Metrics;
use crate::ovs::Ovs;
use calls::Calls;
use timing::Journal;

/// The node, to those who work on it. Clones share everything.
#[derive(Debug, Clone)]
pub struct Node {
    /// The node's own network namespace.
    pub netlink: Netlink,
    /// The same, for deleting links: that blocks for tens of milliseconds, and must hold up nobody else.
    pub reaper: Netlink,
    /// The Open_vSwitch database.
    pub ovs: Ovs,
    /// This node's pods.
    pub pods: Pods,
    /// The path chosen at start.
    pub datapath: Arc<Datapath>,
    /// MTU of pod interfaces in bytes.
    pub mtu: u32,
    /// CNI calls under way.
    pub calls: Calls,
    /// CNI calls of the past.
    pub journal: Journal,
    /// Counters.
    pub metrics: Metrics,
    /// What keeps the node from being ready.
    pub health: Health,
    /// The other nodes.
    pub peers: Peers,
    /// Who may use the flow cache, and when.
    pub flow_cache: Manager,
    /// What must live as long as the agent.
    pub tasks: Tasks,
}

/// Addresses of the other nodes with their names. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    names: Arc<RwLock<BTreeMap<IpAddr, String>>>,
}

impl Peers {
    /// Takes all of them in place of what was there.
    pub fn set(&self, names: BTreeMap<IpAddr, String>) {
        *self.names.write() = names;
    }

    /// All of them.
    pub fn list(&self) -> BTreeMap<IpAddr, String> {
        self.names.read().clone()
    }
}

impl Node {
    /// Starts what invalidates the flow cache and decides who may use it. Runs for as long as the agent.
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

    /// Where writers of the Node object report failures.
    pub(crate) fn reports(&self) -> Reports {
        Reports { health: self.health.clone(), metrics: self.metrics.clone() }
    }

    /// Everything that keeps ADD from being served, empty when it can be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.health.problems();
        if !self.ovs.replica().is_synced() {
            problems.push("ovs: not connected to the Open_vSwitch database".to_owned());
        }
        if self.ovs.bridge(api::ovn_name::INTEGRATION_BRIDGE).is_none() {
            problems.push("ovs: no bridge br-int; ovn-controller makes it".to_owned());
        }
        if !self.pods.is_synced() {
            problems.push("pods: this node's pods are not yet read from the Kubernetes API".to_owned());
        }
        problems
    }
}
