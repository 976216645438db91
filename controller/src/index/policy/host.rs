//! The namespace that represents the nodes themselves. A peer that selects it by its labels, and no pods in particular,
//! includes the addresses from which the nodes reach pods: so a policy can allow programs in the hosts' network.

use std::collections::{BTreeMap, BTreeSet};

use super::{NamespaceScope, PeerSelector};
use crate::index::Namespace;

/// The namespace that represents the nodes, and the peers that select it.
#[derive(Debug, Default)]
pub struct HostNetwork {
    /// Name of the namespace that represents the nodes; `None` when there is none.
    namespace: Option<String>,
    peers: BTreeSet<PeerSelector>,
}

impl HostNetwork {
    pub(super) fn new(namespace: Option<String>) -> Self {
        Self { namespace, peers: BTreeSet::new() }
    }

    /// Whether this namespace represents the nodes.
    pub(super) fn is(&self, namespace: &str) -> bool {
        self.namespace.as_deref() == Some(namespace)
    }

    /// Whether any namespace represents the nodes.
    pub fn is_configured(&self) -> bool {
        self.namespace.is_some()
    }

    /// The distinct peers that include the nodes' addresses.
    pub fn peers(&self) -> impl Iterator<Item = &PeerSelector> {
        self.peers.iter()
    }

    /// A peer came into use. True when it includes the nodes' addresses.
    pub(super) fn add(&mut self, peer: &PeerSelector, namespaces: &BTreeMap<String, Namespace>) -> bool {
        self.takes(peer, namespaces) && self.peers.insert(peer.clone())
    }

    /// A peer is not used any more. True when it included the nodes' addresses.
    pub(super) fn remove(&mut self, peer: &PeerSelector) -> bool {
        self.peers.remove(peer)
    }

    /// The namespace came, went or got other labels. True when other peers select it than before.
    pub(super) fn refresh<'a>(
        &mut self,
        peers: impl Iterator<Item = &'a PeerSelector>,
        namespaces: &BTreeMap<String, Namespace>,
    ) -> bool {
        let taking: BTreeSet<_> = peers.filter(|peer| self.takes(peer, namespaces)).cloned().collect();
        let changed = taking != self.peers;
        self.peers = taking;
        changed
    }

    fn takes(&self, peer: &PeerSelector, namespaces: &BTreeMap<String, Namespace>) -> bool {
        let PeerSelector { namespace: NamespaceScope::Matching(selector), pod: None } = peer else {
            return false;
        };
        let namespace = self.namespace.as_ref().and_then(|name| namespaces.get(name));
        namespace.is_some_and(|namespace| selector.matches(&namespace.labels))
    }
}
