//! Network policies: plain structs, how they are read, and which units a change makes dirty.

mod cluster;
mod convert;
mod host;
mod multi;
mod named;
mod store;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::selector::Selector;
use super::{Namespace, Pod, Protocol};
use api::NamespacedName;

pub use cluster::Cluster;
pub use convert::SeenMultiPolicy;
pub use host::HostNetwork;
pub use multi::{Attachable, MultiPolicies, OnNetwork};
pub use named::{NamedPort, NamedPorts, Scope};
pub use store::PolicyStore;

/// A network policy. A direction that is `Some` isolates the selected pods in that direction, also without rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Name of the policy.
    pub name: NamespacedName,
    /// Selects pods of the policy's namespace.
    pub subject: Selector,
    /// Rules for traffic to the pods; `None`: not isolated.
    pub ingress: Option<Vec<Rule>>,
    /// Rules for traffic from the pods; `None`: not isolated.
    pub egress: Option<Vec<Rule>>,
}

/// A direction of traffic, as seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Traffic to the pod.
    Ingress,
    /// Traffic from the pod.
    Egress,
}

/// One rule: traffic is allowed if it matches one of the peers and one of the ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `None`: all peers.
    pub peers: Option<Peers>,
    /// `None`: every protocol and port.
    pub ports: Option<Vec<PortRule>>,
}

/// The peers of a rule. With neither blocks nor selectors the rule allows no peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peers {
    /// Ranges of addresses.
    pub blocks: Vec<IpBlock>,
    /// Pods by namespace and labels.
    pub selectors: Vec<PeerSelector>,
}

/// Addresses that are peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpBlock {
    /// Range of peers.
    pub cidr: IpNet,
    /// Inside `cidr`.
    pub except: Vec<IpNet>,
}

/// Pods that are peers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerSelector {
    /// Namespaces of the pods.
    pub namespace: NamespaceScope,
    /// `None`: all pods of the namespaces except host-network pods; and the nodes, where a namespace selector selects the namespace
    /// that represents them ([`HostNetwork`]).
    pub pod: Option<Selector>,
}

/// Namespaces whose pods are peers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamespaceScope {
    /// The policy's own namespace, whatever its labels.
    Own(String),
    /// Namespaces with matching labels.
    Matching(Selector),
}

/// Ports of one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRule {
    /// Protocol of the ports.
    pub protocol: Protocol,
    /// Ports that are allowed.
    pub port: PortSpec,
}

/// Which ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortSpec {
    /// Every port.
    All,
    /// One port by its number.
    Number(u16),
    /// Range of ports, both ends included.
    Range(u16, u16),
    /// The port to which the destination pod gives this name.
    Named(String),
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The name that Kubernetes uses.
    pub fn text(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }
}

impl Policy {
    /// The rules of a direction; `None` when the policy does not apply to it.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// True when the policy selects the pod. No policy applies to host-network pods.
    pub fn selects(&self, pod: &Pod) -> bool {
        !pod.host_network && pod.name.namespace == self.name.namespace && self.subject.matches(&pod.labels)
    }

    fn all_rules(&self) -> impl Iterator<Item = (Direction, &Rule)> {
        Direction::ALL.into_iter().flat_map(|direction| {
            self.rules(direction).into_iter().flatten().map(move |rule| (direction, rule))
        })
    }

    /// Every peer selector of every rule.
    pub fn peer_selectors(&self) -> impl Iterator<Item = &PeerSelector> {
        self.all_rules().filter_map(|(_, rule)| rule.peers.as_ref()).flat_map(|peers| &peers.selectors)
    }

    /// Every named port with the pods over which it is resolved.
    pub fn named_ports(&self) -> impl Iterator<Item = NamedPort> {
        self.all_rules().flat_map(move |(direction, rule)| {
            let ports = rule.ports.iter().flatten();
            ports.flat_map(move |port| match &port.port {
                PortSpec::Named(name) => self.named_port(direction, rule, name, port.protocol),
                _ => Vec::new(),
            })
        })
    }

    /// How one named port of a rule is resolved: on ingress over the policy's own pods; on egress over the pods that the
    /// peers select, and over all pods where the rule has no peers or has address blocks.
    pub fn named_port(
        &self,
        direction: Direction,
        rule: &Rule,
        name: &str,
        protocol: Protocol,
    ) -> Vec<NamedPort> {
        let make = |scope| NamedPort { scope, name: name.to_owned(), protocol };
        match (direction, &rule.peers) {
            (Direction::Ingress, _) => vec![make(Scope::Pods(self.subject_as_peer()))],
            (Direction::Egress, None) => vec![make(Scope::Anywhere)],
            (Direction::Egress, Some(peers)) => {
                let mut found: Vec<_> =
                    peers.selectors.iter().map(|selector| make(Scope::Pods(selector.clone()))).collect();
                if !peers.blocks.is_empty() {
                    found.push(make(Scope::Anywhere));
                }
                found
            }
        }
    }

    /// The selected pods in the form of a peer.
    pub fn subject_as_peer(&self) -> PeerSelector {
        PeerSelector {
            namespace: NamespaceScope::Own(self.name.namespace.clone()),
            pod: Some(self.subject.clone()),
        }
    }
}

impl PeerSelector {
    /// The name of the set in ids, as ovn-kubernetes builds it: namespaces, `_`, pods. Host-network pods are left out where
    /// only namespaces are selected (`_LNM`).
    pub fn text(&self) -> String {
        let namespace = match &self.namespace {
            NamespaceScope::Own(name) => name.clone(),
            NamespaceScope::Matching(selector) => selector.text(),
        };
        match &self.pod {
            Some(selector) => format!("{namespace}_{}", selector.text()),
            None => format!("{namespace}_{}_LNM", Selector::default().text()),
        }
    }

    /// True when the pod is in the set. A namespace that is not known matches no selector.
    pub fn matches(&self, pod: &Pod, namespaces: &BTreeMap<String, Namespace>) -> bool {
        let in_namespace = match &self.namespace {
            NamespaceScope::Own(name) => *name == pod.name.namespace,
            NamespaceScope::Matching(selector) => namespaces
                .get(&pod.name.namespace)
                .is_some_and(|namespace| selector.matches(&namespace.labels)),
        };
        in_namespace
            && match &self.pod {
                Some(selector) => selector.matches(&pod.labels),
                None => !pod.host_network,
            }
    }
}

/// The addresses of a pod as a peer: its own, or the node's for a host-network pod.
pub fn peer_addresses(pod: &Pod) -> Vec<IpAddr> {
    if pod.host_network { pod.status_ips.clone() } else { pod.addresses.iter().map(IpNet::addr).collect() }
}
