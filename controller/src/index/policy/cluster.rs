//! What policies depend on besides themselves.

use std::collections::BTreeMap;

use super::{NamespaceScope, PeerSelector};
use crate::index::{Namespace, Node, Pod};
use crate::unit::Unit;
use api::NamespacedName;

/// The objects that policies depend on, after the change that is being reported.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    /// The nodes, by name.
    pub nodes: &'a BTreeMap<String, Node>,
    /// The pods, by name.
    pub pods: &'a BTreeMap<NamespacedName, Pod>,
    /// The namespaces, by name.
    pub namespaces: &'a BTreeMap<String, Namespace>,
}

impl<'a> Cluster<'a> {
    /// The units of all nodes' memberships.
    pub(super) fn node_peers(self) -> impl Iterator<Item = Unit> + use<'a> {
        self.nodes.keys().cloned().map(Unit::NodePeers)
    }

    /// Pods of a namespace.
    pub fn pods_in<'b>(self, namespace: &'b str) -> impl Iterator<Item = &'a Pod> + use<'a, 'b> {
        let from = NamespacedName::new(namespace, "");
        self.pods.range(from..).map(|(_, pod)| pod).take_while(move |pod| pod.name.namespace == namespace)
    }

    /// Pods that a peer selector selects.
    pub fn selected<'b>(self, selector: &'b PeerSelector) -> impl Iterator<Item = &'a Pod> + use<'a, 'b>
    where
        'a: 'b,
    {
        let namespaces: Vec<&'b str> = match &selector.namespace {
            NamespaceScope::Own(name) => vec![name],
            NamespaceScope::Matching(labels) => self
                .namespaces
                .values()
                .filter(|namespace| labels.matches(&namespace.labels))
                .map(|namespace| namespace.name.as_str())
                .collect(),
        };
        namespaces
            .into_iter()
            .flat_map(move |namespace| self.pods_in(namespace))
            .filter(move |pod| selector.matches(pod, self.namespaces))
    }
}
