//! What depends on external gateways: the pods of their namespaces, and the nodes of these.

use super::{Dirty, ExternalGateways, Index, Namespace, Pod};
use crate::unit::Unit;

impl Index {
    /// The external gateways of a namespace, if it has any.
    pub fn external_gateways(&self, namespace: &str) -> Option<&ExternalGateways> {
        let gateways = self.namespaces.get(namespace).map(|namespace| &namespace.external_gateways);
        gateways.filter(|gateways| !gateways.is_empty())
    }

    /// The units that depend on the gateways of a namespace, which have changed.
    pub(super) fn gateways_changed(&self, namespace: &str) -> Dirty {
        let pods = self.pods_of_namespace(namespace).filter(|pod| !pod.host_network);
        pods.flat_map(|pod| [Unit::Pod(pod.name.clone()), Unit::ExternalGateways(pod.node.clone())]).collect()
    }

    /// The nodes on which pods with external gateways have other addresses when a pod changes.
    pub(super) fn gateways_of_nodes_changed(&self, old: Option<&Pod>, new: Option<&Pod>) -> Dirty {
        let place = |pod: &Pod| (pod.node.clone(), pod.addresses.clone());
        if old.map(place) == new.map(place) {
            return Dirty::new();
        }
        let pods = old.into_iter().chain(new).filter(|pod| !pod.host_network);
        let with = pods.filter(|pod| self.external_gateways(&pod.name.namespace).is_some());
        with.map(|pod| Unit::ExternalGateways(pod.node.clone())).collect()
    }

    /// The pods of a node that have external gateways.
    pub(super) fn pods_with_gateways(&self, node: &str) -> impl Iterator<Item = Unit> {
        let pods = self.pods_of_node(node).filter(|pod| self.external_gateways(&pod.namespace).is_some());
        let with = pods.filter(|name| self.pods.get(*name).is_some_and(|pod| !pod.host_network));
        with.map(|pod| Unit::Pod(pod.clone()))
    }
}

/// Whether the gateways differ between two states of a namespace.
pub(super) fn differ(old: Option<&Namespace>, new: Option<&Namespace>) -> bool {
    let of =
        |namespace: Option<&Namespace>| namespace.map(|n| n.external_gateways.clone()).unwrap_or_default();
    of(old) != of(new)
}
