//! All policies and their distinct peer selectors, and which units a change makes dirty.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cluster, Direction, HostNetwork, NamedPort, NamedPorts, NamespaceScope, PeerSelector, Policy};
use crate::index::selector::Selector;
use crate::index::{Dirty, Namespace, Pod};
use crate::unit::Unit;
use api::NamespacedName;

/// Network policies. Every change returns the units to plan again; all of them belong in one transaction, so that no pod is
/// open in between.
#[derive(Debug, Default)]
pub struct PolicyStore {
    policies: BTreeMap<NamespacedName, Policy>,
    /// Distinct peer selectors with the policies that use them.
    peers: BTreeMap<PeerSelector, BTreeSet<NamespacedName>>,
    named: NamedPorts,
    host: HostNetwork,
}

impl PolicyStore {
    /// No policies. Peers that select the namespace `host` include the nodes' addresses.
    pub fn new(host: Option<String>) -> Self {
        Self { host: HostNetwork::new(host), ..Self::default() }
    }

    /// A policy was added or changed.
    pub fn apply(&mut self, policy: Policy, cluster: Cluster<'_>) -> Dirty {
        let name = policy.name.clone();
        if self.policies.get(&name) == Some(&policy) {
            return Dirty::new();
        }
        let old = self.policies.insert(name.clone(), policy);
        self.changed(&name, old.as_ref(), cluster)
    }

    /// A policy is gone.
    pub fn delete(&mut self, name: &NamespacedName, cluster: Cluster<'_>) -> Dirty {
        match self.policies.remove(name) {
            Some(old) => self.changed(name, Some(&old), cluster),
            None => Dirty::new(),
        }
    }

    /// A pod was added, changed or deleted: its own memberships, and the policies whose named ports it changes.
    pub fn pod_changed(&mut self, pod: &NamespacedName, cluster: Cluster<'_>) -> Dirty {
        let mut dirty = Dirty::from([Unit::Pod(pod.clone())]);
        dirty.extend(self.named.refresh(pod, cluster).into_iter().map(Unit::Policy));
        dirty
    }

    /// A namespace came, went or got other labels: the memberships of its pods, and those of the nodes if it represents them.
    pub fn namespace_changed(&mut self, namespace: &str, cluster: Cluster<'_>) -> Dirty {
        let mut dirty = Dirty::new();
        if self.host.is(namespace) && self.host.refresh(matching(&self.peers), cluster.namespaces) {
            dirty.extend(cluster.node_peers());
        }
        if self.matching_peers().next().is_none() && self.named.is_empty() {
            return dirty;
        }
        for pod in cluster.pods_in(namespace) {
            dirty.extend(self.pod_changed(&pod.name, cluster));
        }
        dirty
    }

    fn changed(&mut self, name: &NamespacedName, old: Option<&Policy>, cluster: Cluster<'_>) -> Dirty {
        let new = self.policies.get(name);
        let mut dirty =
            Dirty::from([Unit::Policy(name.clone()), Unit::PolicyNamespace(name.namespace.clone())]);
        for pod in cluster.pods_in(&name.namespace) {
            let isolates = |policy: Option<&Policy>| {
                let policy = policy.filter(|policy| policy.selects(pod))?;
                Some(Direction::ALL.map(|direction| policy.rules(direction).is_some()))
            };
            if isolates(old) != isolates(new) {
                dirty.insert(Unit::Pod(pod.name.clone()));
            }
        }
        let peers = |policy: Option<&Policy>| -> BTreeSet<PeerSelector> {
            policy.into_iter().flat_map(Policy::peer_selectors).cloned().collect()
        };
        let named = |policy: Option<&Policy>| -> BTreeSet<NamedPort> {
            policy.into_iter().flat_map(Policy::named_ports).collect()
        };
        let (old_peers, new_peers) = (peers(old), peers(new));
        let (old_named, new_named) = (named(old), named(new));
        for selector in old_peers.difference(&new_peers) {
            let Some(users) = self.peers.get_mut(selector) else { continue };
            users.remove(name);
            if users.is_empty() {
                self.peers.remove(selector);
                if self.host.remove(selector) {
                    dirty.extend(cluster.node_peers());
                }
                dirty.extend(cluster.selected(selector).map(|pod| Unit::Pod(pod.name.clone())));
            }
        }
        for selector in new_peers.difference(&old_peers) {
            let users = self.peers.entry(selector.clone()).or_default();
            if users.is_empty() {
                dirty.extend(cluster.selected(selector).map(|pod| Unit::Pod(pod.name.clone())));
                if self.host.add(selector, cluster.namespaces) {
                    dirty.extend(cluster.node_peers());
                }
            }
            users.insert(name.clone());
        }
        for port in old_named.difference(&new_named) {
            dirty.extend(self.named.remove_user(port, name).into_iter().map(Unit::Pod));
        }
        for port in new_named.difference(&old_named) {
            dirty.extend(self.named.add_user(port.clone(), name, cluster).into_iter().map(Unit::Pod));
        }
        dirty
    }

    /// A policy by name.
    pub fn get(&self, name: &NamespacedName) -> Option<&Policy> {
        self.policies.get(name)
    }

    /// Names of all policies.
    pub fn names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.policies.keys()
    }

    /// Policies of a namespace.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Policy> {
        let from = NamespacedName::new(namespace, "");
        let policies = self.policies.range(from..).map(|(_, policy)| policy);
        policies.take_while(move |policy| policy.name.namespace == namespace)
    }

    /// Every unit in the store.
    pub fn units(&self) -> Dirty {
        let of_policy = |name: &NamespacedName| {
            [Unit::Policy(name.clone()), Unit::PolicyNamespace(name.namespace.clone())]
        };
        self.policies.keys().flat_map(of_policy).collect()
    }

    /// Named ports, resolved.
    pub fn named_ports(&self) -> &NamedPorts {
        &self.named
    }

    /// The namespace that represents the nodes, and the peers that select it.
    pub fn host_network(&self) -> &HostNetwork {
        &self.host
    }

    /// The distinct peer selectors that select the pod.
    pub fn peers_of<'a>(
        &'a self,
        pod: &'a Pod,
        namespaces: &'a BTreeMap<String, Namespace>,
    ) -> impl Iterator<Item = &'a PeerSelector> {
        let own = NamespaceScope::Own(pod.name.namespace.clone());
        let from = PeerSelector { namespace: own.clone(), pod: None };
        let of_own =
            self.peers.range(from..).map(|(peer, _)| peer).take_while(move |peer| peer.namespace == own);
        of_own.chain(self.matching_peers()).filter(move |peer| peer.matches(pod, namespaces))
    }

    /// Peer selectors with a namespace selector. They sort after all others.
    fn matching_peers(&self) -> impl Iterator<Item = &PeerSelector> {
        matching(&self.peers)
    }
}

fn matching(peers: &BTreeMap<PeerSelector, BTreeSet<NamespacedName>>) -> impl Iterator<Item = &PeerSelector> {
    let from = PeerSelector { namespace: NamespaceScope::Matching(Selector::default()), pod: None };
    peers.range(from..).map(|(peer, _)| peer)
}
