//! What the parts of the agent share: handles to the kernel, OVS and the API, and how the node is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;
use supervision::Tasks;

use crate::cni::locks::Calls;
use crate::cni::steps::Journal;
use crate::datapath::Datapath;
use crate::fastpath::Fastpath;
use crate::link::Netlink;
use crate::metrics::Metrics;
use crate::ovs::Ovs;
use crate::pods::Pods;

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
    pub fastpath: Fastpath,
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

/// Named conditions that must hold for the node to be ready, and warnings that somebody should look at. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Health {
    conditions: Arc<RwLock<BTreeMap<&'static str, Option<String>>>>,
    warnings: Arc<RwLock<BTreeMap<&'static str, String>>>,
}

impl Health {
    /// The condition holds.
    pub fn good(&self, condition: &'static str) {
        let old = self.conditions.write().insert(condition, None);
        if old != Some(None) {
            tracing::info!(condition, "good");
        }
    }

    /// The condition does not hold, and why.
    pub fn bad(&self, condition: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        let old = self.conditions.write().insert(condition, Some(reason.clone()));
        if old.flatten().as_ref() != Some(&reason) {
            tracing::warn!(condition, reason, "not good");
        }
    }

    /// Something is wrong that does not keep the node from being ready; `None`: it is right.
    pub fn warning(&self, what: &'static str, reason: Option<String>) {
        let mut warnings = self.warnings.write();
        match reason {
            Some(reason) => {
                if warnings.get(what) != Some(&reason) {
                    tracing::warn!(what, "{reason}");
                    warnings.insert(what, reason);
                }
            }
            None => {
                if warnings.remove(what).is_some() {
                    tracing::info!(what, "right again");
                }
            }
        }
    }

    /// `WHAT: REASON` of everything that somebody should look at.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.read().iter().map(|(what, reason)| format!("{what}: {reason}")).collect()
    }

    /// Every condition with the reason why it does not hold.
    pub fn list(&self) -> BTreeMap<&'static str, Option<String>> {
        self.conditions.read().clone()
    }

    /// `CONDITION: REASON` of all that do not hold.
    pub fn problems(&self) -> Vec<String> {
        let conditions = self.conditions.read();
        conditions.iter().filter_map(|(name, reason)| Some(format!("{name}: {}", reason.as_ref()?))).collect()
    }
}

impl Node {
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
