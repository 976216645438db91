//! Policies of virtual networks (MultiNetworkPolicy). Each network that has some has a store of its own, over the pods that are attached to
//! it with the addresses that they have there; so they are the policies of a cluster whose only network this is.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cluster, Policy, PolicyStore};
use crate::index::{Dirty, Namespace, Node, Pod};
use crate::unit::Unit;
use api::NamespacedName;

/// The policies of one network.
#[derive(Debug, Default)]
pub struct OnNetwork {
    /// Pods attached to the virtual network, as they are there.
    pub pods: BTreeMap<NamespacedName, Pod>,
    /// Policies for the virtual network.
    pub store: PolicyStore,
}

/// The policies of all virtual networks.
#[derive(Debug, Default)]
pub struct MultiPolicies {
    /// The networks of each policy.
    policies: BTreeMap<NamespacedName, BTreeSet<NamespacedName>>,
    networks: BTreeMap<NamespacedName, OnNetwork>,
}

/// The objects that the policies depend on.
#[derive(Debug, Clone, Copy)]
pub struct Attachable<'a> {
    /// Pods of the cluster.
    pub pods: &'a BTreeMap<NamespacedName, Pod>,
    /// Namespaces by name.
    pub namespaces: &'a BTreeMap<String, Namespace>,
}

/// No node is a peer on a virtual network.
static NO_NODES: BTreeMap<String, Node> = BTreeMap::new();

/// A pod as it is on a network: with its addresses there; none if it is not attached.
fn on_network(pod: &Pod, network: &NamespacedName) -> Option<Pod> {
    let attached = || pod.attachments.iter().filter(|attached| attached.network == *network);
    attached().next()?;
    let addresses = attached().flat_map(|attached| &attached.addresses).copied().collect();
    Some(Pod {
        addresses,
        mac: None,
        host_network: false,
        attachments: Vec::new(),
        status_ips: Vec::new(),
        ..pod.clone()
    })
}

/// Units of one network's store as units of that network.
fn units(network: &NamespacedName, dirty: Dirty) -> impl Iterator<Item = Unit> {
    dirty.into_iter().map(move |unit| match unit {
        Unit::Policy(name) => Unit::MultiPolicy(network.clone(), name),
        Unit::PolicyNamespace(name) => Unit::MultiPolicyNamespace(network.clone(), name),
        other => other,
    })
}

impl OnNetwork {
    /// The pods and the store apart, as the latter is told about the former.
    fn parts<'a>(
        &'a mut self,
        namespaces: &'a BTreeMap<String, Namespace>,
    ) -> (&'a mut PolicyStore, Cluster<'a>) {
        (&mut self.store, Cluster { nodes: &NO_NODES, pods: &self.pods, namespaces })
    }
}

impl MultiPolicies {
    /// The policies of a network, if it has any.
    pub fn on(&self, network: &NamespacedName) -> Option<&OnNetwork> {
        self.networks.get(network)
    }

    /// The networks that a policy is about.
    pub fn networks_of(&self, policy: &NamespacedName) -> Option<&BTreeSet<NamespacedName>> {
        self.policies.get(policy)
    }

    /// A policy was added or changed, or is about other networks than before.
    pub fn apply(
        &mut self,
        policy: &Policy,
        networks: BTreeSet<NamespacedName>,
        all: Attachable<'_>,
        pods_of: impl Fn(&NamespacedName) -> Vec<NamespacedName>,
    ) -> Dirty {
        let old = self.policies.insert(policy.name.clone(), networks.clone()).unwrap_or_default();
        let mut dirty = Dirty::new();
        for network in old.difference(&networks) {
            dirty.extend(self.remove(&policy.name, network, all));
        }
        for network in &networks {
            let on = self.networks.entry(network.clone()).or_insert_with(|| {
                let pods = pods_of(network).into_iter().filter_map(|name| all.pods.get(&name));
                let pods = pods.filter_map(|pod| Some((pod.name.clone(), on_network(pod, network)?)));
                OnNetwork { pods: pods.collect(), store: PolicyStore::default() }
            });
            let (store, cluster) = on.parts(all.namespaces);
            dirty.extend(units(network, store.apply(policy.clone(), cluster)));
        }
        dirty
    }

    /// A policy is gone.
    pub fn delete(&mut self, name: &NamespacedName, all: Attachable<'_>) -> Dirty {
        let networks = self.policies.remove(name).unwrap_or_default();
        networks.iter().flat_map(|network| self.remove(name, network, all)).collect()
    }

    fn remove(&mut self, name: &NamespacedName, network: &NamespacedName, all: Attachable<'_>) -> Dirty {
        let Some(on) = self.networks.get_mut(network) else { return Dirty::new() };
        let (store, cluster) = on.parts(all.namespaces);
        let dirty = units(network, store.delete(name, cluster)).collect();
        if on.store.names().next().is_none() {
            self.networks.remove(network);
        }
        dirty
    }

    /// A pod was added, changed or deleted. `networks`: those that it was attached to, and those that it is attached to.
    pub fn pod_changed<'a>(
        &mut self,
        name: &NamespacedName,
        networks: impl IntoIterator<Item = &'a NamespacedName>,
        all: Attachable<'_>,
    ) -> Dirty {
        let mut dirty = Dirty::new();
        for network in networks {
            let Some(on) = self.networks.get_mut(network) else { continue };
            match all.pods.get(name).and_then(|pod| on_network(pod, network)) {
                Some(pod) => drop(on.pods.insert(name.clone(), pod)),
                None => drop(on.pods.remove(name)),
            }
            let (store, cluster) = on.parts(all.namespaces);
            dirty.extend(units(network, store.pod_changed(name, cluster)));
        }
        dirty
    }

    /// A namespace came, went or got other labels.
    pub fn namespace_changed(&mut self, namespace: &str, all: Attachable<'_>) -> Dirty {
        let mut dirty = Dirty::new();
        for (network, on) in &mut self.networks {
            let (store, cluster) = on.parts(all.namespaces);
            dirty.extend(units(network, store.namespace_changed(namespace, cluster)));
        }
        dirty
    }

    /// Every unit of a network's policies.
    pub fn units_of(&self, network: &NamespacedName) -> Dirty {
        let on = self.networks.get(network);
        on.into_iter().flat_map(|on| units(network, on.store.units())).collect()
    }

    /// Every unit.
    pub fn units(&self) -> Dirty {
        self.networks.keys().flat_map(|network| self.units_of(network)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::index::{Attached, Index};

    fn name(name: &str) -> NamespacedName {
        NamespacedName::new("x", name)
    }

    fn policy(selector: serde_json::Value) -> Policy {
        let object = json!({"metadata": {"namespace": "x", "name": "p"}, "spec": {"podSelector": {},
            "ingress": [{"from": [{"podSelector": selector}], "ports": [{"port": "web"}]}]}});
        Policy::from_object(&serde_json::from_value(object).unwrap()).0
    }

    fn pod(uid: &str, addresses: &[(&str, &str)]) -> Pod {
        let object = json!({"metadata": {"namespace": "x", "name": uid, "uid": uid, "labels": {"app": uid}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}]}});
        let mut pod = crate::index::convert::pod(serde_json::from_value(object).unwrap()).unwrap().pod;
        pod.addresses = vec!["10.244.0.9/24".parse().unwrap()];
        pod.attachments = addresses
            .iter()
            .enumerate()
            .map(|(at, (network, address))| Attached {
                key: format!("x/{network}"),
                network: name(network),
                interface: format!("net{at}"),
                addresses: vec![address.parse().unwrap()],
                mac: api::MacAddr::default(),
                default_gateways: Vec::new(),
                routes: Vec::new(),
                mtu: 1400,
                detect_duplicates: false,
            })
            .collect();
        pod
    }

    fn on(index: &Index, network: &str) -> Vec<String> {
        let on = index.multi_policies.on(&name(network));
        let pods = on.into_iter().flat_map(|on| on.pods.values());
        pods.map(|pod| format!("{} {:?}", pod.name.name, pod.addresses)).collect()
    }

    #[test]
    fn a_network_with_policies_has_its_pods_with_their_addresses_there() {
        let mut index = Index::new(Vec::new());
        index.apply_pod(pod(
            "a",
            &[("blue", "172.16.24.2/24"), ("blue", "172.16.24.3/24"), ("red", "172.16.25.2/24")],
        ));
        index.apply_pod(pod("b", &[("red", "172.16.25.3/24")]));
        index.apply_pod(pod("c", &[]));
        let dirty = index.apply_multi_policy(
            &policy(json!({"matchLabels": {"app": "a"}})),
            BTreeSet::from([name("blue")]),
        );
        let expected = Dirty::from([
            Unit::MultiPolicyNamespace(name("blue"), "x".to_owned()),
            Unit::MultiPolicy(name("blue"), name("p")),
            Unit::Pod(name("a")),
        ]);
        assert_eq!(dirty, expected);
        assert_eq!(on(&index, "blue"), ["a [172.16.24.2/24, 172.16.24.3/24]"]);
        assert!(on(&index, "red").is_empty() && index.multi_policies.on(&name("red")).is_none());
        assert!(index.policies.names().next().is_none());
        // About another network from now on.
        let dirty = index
            .apply_multi_policy(&policy(json!({"matchLabels": {"app": "a"}})), BTreeSet::from([name("red")]));
        for unit in [
            Unit::MultiPolicy(name("blue"), name("p")),
            Unit::MultiPolicy(name("red"), name("p")),
            Unit::Pod(name("a")),
            Unit::Pod(name("b")),
        ] {
            assert!(dirty.contains(&unit), "{unit}: {dirty:?}");
        }
        assert!(index.multi_policies.on(&name("blue")).is_none());
        assert_eq!(on(&index, "red"), ["a [172.16.25.2/24]", "b [172.16.25.3/24]"]);
        assert!(index.units().is_superset(&index.multi_policies.units_of(&name("red"))));
        assert!(!index.delete_multi_policy(&name("p")).is_empty());
        assert!(index.multi_policies.networks.is_empty() && index.multi_policies.policies.is_empty());
    }

    #[test]
    fn pods_that_come_and_go_and_name_ports_are_followed() {
        let mut index = Index::new(Vec::new());
        index.apply_multi_policy(&policy(json!({})), BTreeSet::from([name("blue")]));
        let dirty = index.apply_pod(pod("a", &[("blue", "172.16.24.2/24")]));
        assert!(
            dirty.contains(&Unit::MultiPolicy(name("blue"), name("p"))),
            "the name has a number: {dirty:?}"
        );
        let dirty = index.apply_pod(pod("a", &[]));
        assert!(dirty.contains(&Unit::MultiPolicy(name("blue"), name("p"))), "and none: {dirty:?}");
        assert!(on(&index, "blue").is_empty());
        index.apply_pod(pod("a", &[("blue", "172.16.24.2/24")]));
        let namespace = Namespace {
            name: "x".to_owned(),
            labels: [("is".to_owned(), "x".to_owned())].into(),
            ..Namespace::default()
        };
        assert!(index.apply_namespace(namespace).contains(&Unit::Pod(name("a"))));
        assert!(index.delete_pod(&name("a")).contains(&Unit::MultiPolicy(name("blue"), name("p"))));
        assert!(on(&index, "blue").is_empty());
    }
}
