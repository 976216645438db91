//! Units of reconciliation (Kubernetes: reconcile keys): the objects whose rows are planned, compared and written together.

use std::fmt;

use api::NamespacedName;

/// A unit of reconciliation. All units that one event makes dirty are written in one transaction, except load balancers: a
/// service may have one for every node. The order of the variants is the order of a full comparison: units that others
/// refer to come first, and policies that isolate a pod come before the pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Cluster router, join switch, groups, meters: rows that exist once.
    Cluster,
    /// A node's switch, gateway router and management port, by node name.
    Node(String),
    /// A virtual network's switch and its port on the cluster router.
    Network(NamespacedName),
    /// The routes and the source NAT of a virtual network on a node's gateway router, by network and node name.
    NetworkOnNode(NamespacedName, String),
    /// The default-deny port groups of a namespace that has policies, by namespace.
    PolicyNamespace(String),
    /// A network policy's port group, ACLs and the address sets of its peers.
    Policy(NamespacedName),
    /// The default-deny port groups of a virtual network's policies, by network and namespace.
    MultiPolicyNamespace(NamespacedName, String),
    /// The port group, ACLs and address sets of one policy of a virtual network, by network and policy.
    MultiPolicy(NamespacedName, NamespacedName),
    /// A pod's ports, their memberships and the pod's routes to external gateways.
    Pod(NamespacedName),
    /// The sets of policies' peers that hold a node's own addresses, by node name.
    NodePeers(String),
    /// The load balancers of a node's host ports, by node name.
    HostPorts(String),
    /// The policies by which a node's pods come to external gateways in gateway mode local, by node name.
    ExternalGateways(String),
    /// A service's load balancers.
    Service(NamespacedName),
}

impl Unit {
    /// Whether its rows are independent of each other, so that a large unit may be sent in several transactions: each row with
    /// its attachments concerns one node.
    pub fn is_divisible(&self) -> bool {
        matches!(self, Self::Service(_) | Self::HostPorts(_))
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("the cluster's own rows"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Network(name) => write!(f, "virtual network {name}"),
            Self::NetworkOnNode(name, node) => write!(f, "virtual network {name} on node {node}"),
            Self::PolicyNamespace(name) => write!(f, "default deny of namespace {name}"),
            Self::Policy(name) => write!(f, "network policy {name}"),
            Self::MultiPolicyNamespace(network, name) => {
                write!(f, "default deny of namespace {name} on virtual network {network}")
            }
            Self::MultiPolicy(network, name) => {
                write!(f, "multi-network policy {name} on virtual network {network}")
            }
            Self::Pod(name) => write!(f, "pod {name}"),
            Self::NodePeers(name) => write!(f, "addresses of node {name} as a peer"),
            Self::HostPorts(name) => write!(f, "host ports of node {name}"),
            Self::ExternalGateways(name) => write!(f, "way to external gateways on node {name}"),
            Self::Service(name) => write!(f, "service {name}"),
        }
    }
}
