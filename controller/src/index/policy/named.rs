//! Named ports, resolved: which pods declare a name, and with which numbers.
//!
//! A policy may name a port instead of numbering it. Different destination pods may give the same name to different
//! numbers, or none. So each named port of a rule is resolved over the rule's destination pods, and the result changes
//! with the pods.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cluster, PeerSelector};
use crate::index::{Pod, Protocol};
use api::NamespacedName;

/// A named port and the pods over which it is resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    /// Pods over which the port is resolved.
    pub scope: Scope,
    /// Name of the port.
    pub name: String,
    /// Protocol of the port.
    pub protocol: Protocol,
}

/// Pods over which a named port is resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All pods of the cluster.
    Anywhere,
    /// The selected pods.
    Pods(PeerSelector),
}

/// All named ports that policies use.
#[derive(Debug, Default)]
pub struct NamedPorts {
    ports: BTreeMap<NamedPort, Resolved>,
}

/// The resolution of one named port.
#[derive(Debug, Default)]
struct Resolved {
    /// Policies that use it.
    users: BTreeSet<NamespacedName>,
    /// Pods that declare it, with the number.
    members: BTreeMap<NamespacedName, u16>,
    /// Number of pods for each port number.
    numbers: BTreeMap<u16, usize>,
}

impl NamedPort {
    /// The number that the pod gives to the name, when the pod is one over which the name is resolved. Where several of
    /// the pod's containers use the same name, the first counts.
    fn number(&self, pod: &Pod, cluster: Cluster<'_>) -> Option<u16> {
        let declared = pod.ports.iter().find(|port| {
            port.protocol == self.protocol && port.name.as_deref() == Some(self.name.as_str())
        })?;
        let in_scope = match &self.scope {
            Scope::Anywhere => true,
            Scope::Pods(selector) => selector.matches(pod, cluster.namespaces),
        };
        in_scope.then_some(declared.port)
    }
}

impl Resolved {
    /// Sets a pod's present number. True when the set of numbers changed.
    fn set(&mut self, pod: &NamespacedName, number: Option<u16>) -> bool {
        let old = match number {
            Some(number) => self.members.insert(pod.clone(), number),
            None => self.members.remove(pod),
        };
        if old == number {
            return false;
        }
        let mut changed = false;
        if let Some(number) = number {
            let count = self.numbers.entry(number).or_default();
            *count += 1;
            changed |= *count == 1;
        }
        if let Some(old) = old
            && let Some(count) = self.numbers.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.numbers.remove(&old);
                changed = true;
            }
        }
        changed
    }
}

impl NamedPorts {
    /// The numbers that the port's pods give to the name.
    pub fn numbers(&self, port: &NamedPort) -> impl Iterator<Item = u16> + use<'_> {
        self.ports.get(port).into_iter().flat_map(|resolved| resolved.numbers.keys().copied())
    }

    /// The named ports to which the pod belongs, each with the pod's number.
    pub fn of_pod<'a>(&'a self, pod: &'a NamespacedName) -> impl Iterator<Item = (&'a NamedPort, u16)> {
        self.ports.iter().filter_map(|(port, resolved)| Some((port, *resolved.members.get(pod)?)))
    }

    /// A policy begins to use the port. Returns the pods that thereby become members of a set.
    pub(super) fn add_user(
        &mut self,
        port: NamedPort,
        policy: &NamespacedName,
        cluster: Cluster<'_>,
    ) -> Vec<NamespacedName> {
        let resolved = self.ports.entry(port.clone()).or_default();
        if !resolved.users.insert(policy.clone()) || resolved.users.len() > 1 {
            return Vec::new();
        }
        let pods: Box<dyn Iterator<Item = &Pod>> = match &port.scope {
            Scope::Anywhere => Box::new(cluster.pods.values()),
            Scope::Pods(selector) => Box::new(cluster.selected(selector)),
        };
        for pod in pods {
            resolved.set(&pod.name, port.number(pod, cluster));
        }
        resolved.members.keys().cloned().collect()
    }

    /// A policy does not use the port any more. Returns the pods that were members if no other policy uses it.
    pub(super) fn remove_user(&mut self, port: &NamedPort, policy: &NamespacedName) -> Vec<NamespacedName> {
        let Some(resolved) = self.ports.get_mut(port) else { return Vec::new() };
        resolved.users.remove(policy);
        if !resolved.users.is_empty() {
            return Vec::new();
        }
        self.ports.remove(port).map(|resolved| resolved.members.into_keys().collect()).unwrap_or_default()
    }

    /// Updates a pod. Returns the policies whose numbers changed.
    pub(super) fn refresh(
        &mut self,
        name: &NamespacedName,
        cluster: Cluster<'_>,
    ) -> BTreeSet<NamespacedName> {
        let pod = cluster.pods.get(name);
        let mut changed = BTreeSet::new();
        for (port, resolved) in &mut self.ports {
            let number = pod.and_then(|pod| port.number(pod, cluster));
            if resolved.set(name, number) {
                changed.extend(resolved.users.iter().cloned());
            }
        }
        changed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}
