//! What the controller knows of the cluster: plain structs, changed by synchronous `apply`/`delete`/`reset`, which answer
//! with the [units](crate::unit::Unit) that must be planned again. No client inside; tests feed objects.

pub mod convert;
pub mod external_gateways;
mod gated_pods;
pub mod network;
pub mod objects;
pub mod peers;
pub mod policy;
pub mod selector;
pub mod service;

use std::collections::{BTreeMap, BTreeSet};

use api::host_port::{self, Conflict, Place, Served};
pub use external_gateways::ExternalGateways;
use ipnet::IpNet;
pub use network::{Attached, Network};
pub use objects::{ContainerPort, Namespace, Node, Pod, Protocol};

use crate::unit::Unit;
use api::NamespacedName;
use api::service::{EndpointSlice, Service};
use policy::{Attachable, Cluster, MultiPolicies, Policy, PolicyStore};
use service::ServiceStore;

/// Units to plan again. Sorted, so that runs are reproducible.
pub type Dirty = BTreeSet<Unit>;

/// Which pod serves which host port of a node, and the claims to ports that were already taken.
pub type HostPorts = (BTreeMap<Place, Served>, Vec<Conflict>);

/// The cluster as planning sees it.
#[derive(Debug, Default)]
pub struct Index {
    /// Nodes that have a number and ranges.
    pub nodes: BTreeMap<String, Node>,
    /// Pods that are bound to a node and not finished.
    pub pods: BTreeMap<NamespacedName, Pod>,
    /// Namespaces.
    pub namespaces: BTreeMap<String, Namespace>,
    /// Services and endpoint slices.
    pub services: ServiceStore,
    /// Network policies.
    pub policies: PolicyStore,
    /// Policies of virtual networks.
    pub multi_policies: MultiPolicies,
    /// Virtual networks, and the pods that are attached to them.
    pub networks: network::Networks,
    /// Pods by node name.
    pods_by_node: BTreeMap<String, BTreeSet<NamespacedName>>,
    /// Names of the ports that connect nodes to physical networks.
    uplinks: BTreeSet<String>,
}

impl Index {
    /// An empty index of a cluster with these pod ranges.
    pub fn new(cluster_subnets: Vec<IpNet>) -> Self {
        Self { services: ServiceStore::new(cluster_subnets), ..Self::default() }
    }

    /// Ranges whose addresses no service may claim as external ones.
    #[must_use]
    pub fn with_own_ranges(mut self, own: Vec<IpNet>) -> Self {
        self.services = std::mem::take(&mut self.services).with_own_ranges(own);
        self
    }

    /// Lets a namespace represent the nodes where policies name peers. To be called before the first policy.
    #[must_use]
    pub fn with_host_network_namespace(self, namespace: Option<String>) -> Self {
        Self { policies: PolicyStore::new(namespace), ..self }
    }

    /// Adds or updates a node.
    pub fn apply_node(&mut self, node: Node) -> Dirty {
        let mut dirty = Dirty::new();
        let name = node.name.clone();
        let old = self.nodes.get(&name);
        if old == Some(&node) {
            return dirty;
        }
        // Pod ports name the chassis and are on the node's switch.
        if old.is_none_or(|old| old.chassis != node.chassis || old.subnets != node.subnets) {
            dirty.extend(self.pods_of_node(&name).map(|pod| Unit::Pod(pod.clone())));
        }
        // Load balancers depend on the node's addresses and zone, and on whether it has a switch and a gateway.
        if old.is_none_or(|old| {
            old.chassis != node.chassis
                || old.subnets != node.subnets
                || old.addresses != node.addresses
                || old.gateway != node.gateway
                || old.zone() != node.zone()
        }) {
            dirty.extend(self.services.nodes_changed());
        }
        // Routes and source NAT of networks on its gateway router.
        if old
            .is_none_or(|old| old.chassis != node.chassis || old.gateway != node.gateway || old.id != node.id)
        {
            dirty.extend(self.networks.units_of_node(&name));
        }
        // Routes to external gateways on its gateway router.
        if old.is_none_or(|old| old.gateway != node.gateway) {
            dirty.extend(self.pods_with_gateways(&name));
        }
        // Its addresses as a peer are derived from range and number.
        if self.policies.host_network().is_configured()
            && old.is_none_or(|old| old.subnets != node.subnets || old.id != node.id)
        {
            dirty.insert(Unit::NodePeers(name.clone()));
        }
        let old_addresses = self.nodes.get(&name).map(Node::all_addresses).unwrap_or_default();
        dirty.extend(self.services.node_addresses(&old_addresses, &node.all_addresses()));
        if let Some(old) = self.nodes.get(&name) {
            for uplink in old.uplinks() {
                self.uplinks.remove(uplink);
            }
        }
        self.uplinks.extend(node.uplinks().map(str::to_owned));
        self.nodes.insert(name.clone(), node);
        dirty.insert(Unit::HostPorts(name.clone()));
        dirty.insert(Unit::ExternalGateways(name.clone()));
        dirty.insert(Unit::Node(name));
        dirty
    }

    /// Removes a node.
    pub fn delete_node(&mut self, name: &str) -> Dirty {
        let mut dirty = Dirty::new();
        if let Some(old) = self.nodes.remove(name) {
            for uplink in old.uplinks() {
                self.uplinks.remove(uplink);
            }
            dirty.extend(self.services.node_addresses(&old.all_addresses(), &BTreeSet::new()));
            dirty.insert(Unit::Node(name.to_owned()));
            dirty.insert(Unit::HostPorts(name.to_owned()));
            dirty.insert(Unit::ExternalGateways(name.to_owned()));
            dirty.extend(self.networks.units_of_node(name));
            if self.policies.host_network().is_configured() {
                dirty.insert(Unit::NodePeers(name.to_owned()));
            }
            dirty.extend(self.services.nodes_changed());
            dirty.extend(self.pods_of_node(name).map(|pod| Unit::Pod(pod.clone())));
        }
        dirty
    }

    /// Adds or updates a pod.
    pub fn apply_pod(&mut self, pod: Pod) -> Dirty {
        let mut dirty = Dirty::new();
        let name = pod.name.clone();
        let old = self.pods.get(&name);
        if old == Some(&pod) {
            return dirty;
        }
        dirty.extend(host_ports_changed(old, Some(&pod)));
        dirty.extend(self.gateways_of_nodes_changed(old, Some(&pod)));
        let networks = networks_of(old, Some(&pod));
        self.networks.attach(
            &name,
            old.map(|old| old.attachments.as_slice()).unwrap_or_default(),
            &pod.attachments,
        );
        if let Some(old) = old.filter(|old| old.node != pod.node) {
            let node = old.node.clone();
            self.unlink(&node, &name);
        }
        self.pods_by_node.entry(pod.node.clone()).or_default().insert(name.clone());
        self.pods.insert(name.clone(), pod);
        dirty.extend(self.policies.pod_changed(
            &name,
            Cluster { nodes: &self.nodes, pods: &self.pods, namespaces: &self.namespaces },
        ));
        let all = Attachable { pods: &self.pods, namespaces: &self.namespaces };
        dirty.extend(self.multi_policies.pod_changed(&name, &networks, all));
        dirty
    }

    /// Removes a pod.
    pub fn delete_pod(&mut self, name: &NamespacedName) -> Dirty {
        let mut dirty = Dirty::new();
        if let Some(old) = self.pods.remove(name) {
            self.unlink(&old.node, name);
            self.networks.attach(name, &old.attachments, &[]);
            dirty.extend(host_ports_changed(Some(&old), None));
            dirty.extend(self.gateways_of_nodes_changed(Some(&old), None));
            let cluster = Cluster { nodes: &self.nodes, pods: &self.pods, namespaces: &self.namespaces };
            dirty.extend(self.policies.pod_changed(name, cluster));
            let all = Attachable { pods: &self.pods, namespaces: &self.namespaces };
            dirty.extend(self.multi_policies.pod_changed(name, &networks_of(Some(&old), None), all));
        }
        dirty
    }

    /// Adds or updates a namespace.
    pub fn apply_namespace(&mut self, namespace: Namespace) -> Dirty {
        let name = namespace.name.clone();
        let old = self.namespaces.insert(name.clone(), namespace);
        let new = self.namespaces.get(&name);
        let is_relabelled = old.as_ref().map(|old| &old.labels) != new.map(|new| &new.labels);
        let has_other_gateways = gated_pods::differ(old.as_ref(), new);
        let mut dirty = Dirty::new();
        if is_relabelled {
            dirty.extend(self.namespace_changed(&name));
        }
        if has_other_gateways {
            dirty.extend(self.gateways_changed(&name));
        }
        dirty
    }

    /// Removes a namespace.
    pub fn delete_namespace(&mut self, name: &str) -> Dirty {
        let old = self.namespaces.remove(name);
        let mut dirty = self.namespace_changed(name);
        if gated_pods::differ(old.as_ref(), None) {
            dirty.extend(self.gateways_changed(name));
        }
        dirty
    }

    fn namespace_changed(&mut self, name: &str) -> Dirty {
        let cluster = Cluster { nodes: &self.nodes, pods: &self.pods, namespaces: &self.namespaces };
        let mut dirty = self.policies.namespace_changed(name, cluster);
        let all = Attachable { pods: &self.pods, namespaces: &self.namespaces };
        dirty.extend(self.multi_policies.namespace_changed(name, all));
        dirty
    }

    /// Adds or updates a service.
    pub fn apply_service(&mut self, service: Service) -> Dirty {
        self.services.apply(service)
    }

    /// Removes a service.
    pub fn delete_service(&mut self, name: &NamespacedName) -> Dirty {
        self.services.delete(name)
    }

    /// Adds or updates an endpoint slice.
    pub fn apply_endpoint_slice(&mut self, slice: EndpointSlice) -> Dirty {
        self.services.apply_slice(slice)
    }

    /// Removes an endpoint slice.
    pub fn delete_endpoint_slice(&mut self, name: &NamespacedName) -> Dirty {
        self.services.delete_slice(name)
    }

    /// Adds or updates a network policy.
    pub fn apply_policy(&mut self, policy: Policy) -> Dirty {
        self.policies
            .apply(policy, Cluster { nodes: &self.nodes, pods: &self.pods, namespaces: &self.namespaces })
    }

    /// Removes a network policy.
    pub fn delete_policy(&mut self, name: &NamespacedName) -> Dirty {
        self.policies
            .delete(name, Cluster { nodes: &self.nodes, pods: &self.pods, namespaces: &self.namespaces })
    }

    /// Adds or updates a policy of these virtual networks.
    pub fn apply_multi_policy(&mut self, policy: &Policy, networks: BTreeSet<NamespacedName>) -> Dirty {
        let all = Attachable { pods: &self.pods, namespaces: &self.namespaces };
        let pods_of = |network: &NamespacedName| self.networks.pods_of(network).cloned().collect();
        self.multi_policies.apply(policy, networks, all, pods_of)
    }

    /// Removes a policy of virtual networks.
    pub fn delete_multi_policy(&mut self, name: &NamespacedName) -> Dirty {
        let all = Attachable { pods: &self.pods, namespaces: &self.namespaces };
        self.multi_policies.delete(name, all)
    }

    /// Which pods serve the host ports of a node, and which do not because another pod does.
    pub fn host_ports(&self, node: &str) -> HostPorts {
        let pods = self.pods_of_node(node).filter_map(|name| self.pods.get(name));
        host_port::serve(pods.flat_map(Pod::host_ports))
    }

    /// Whether a logical port of this name is the uplink of a node.
    pub fn is_uplink(&self, port: &str) -> bool {
        self.uplinks.contains(port)
    }

    /// Names of the ports that connect a node to physical networks.
    pub fn uplinks_of(&self, node: &str) -> impl Iterator<Item = &str> {
        self.nodes.get(node).into_iter().flat_map(Node::uplinks)
    }

    /// Pods bound to a node.
    pub fn pods_of_node(&self, node: &str) -> impl Iterator<Item = &NamespacedName> {
        self.pods_by_node.get(node).into_iter().flatten()
    }

    /// Pods of a namespace.
    pub fn pods_of_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Pod> {
        let from = NamespacedName::new(namespace, "");
        self.pods.range(from..).map(|(_, pod)| pod).take_while(move |pod| pod.name.namespace == namespace)
    }

    /// Every unit in the index.
    pub fn units(&self) -> Dirty {
        let mut units = Dirty::from([Unit::Cluster]);
        units.extend(self.nodes.keys().cloned().map(Unit::Node));
        units.extend(self.nodes.keys().cloned().map(Unit::HostPorts));
        units.extend(self.nodes.keys().cloned().map(Unit::ExternalGateways));
        if self.policies.host_network().is_configured() {
            units.extend(self.nodes.keys().cloned().map(Unit::NodePeers));
        }
        units.extend(self.networks.ready.keys().cloned().map(Unit::Network));
        units.extend(self.nodes.keys().flat_map(|node| self.networks.units_of_node(node)));
        units.extend(self.pods.keys().cloned().map(Unit::Pod));
        units.extend(self.services.names().cloned().map(Unit::Service));
        units.extend(self.policies.units());
        units.extend(self.multi_policies.units());
        units
    }

    fn unlink(&mut self, node: &str, pod: &NamespacedName) {
        if let Some(pods) = self.pods_by_node.get_mut(node) {
            pods.remove(pod);
            if pods.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
    }
}

/// The virtual networks that a pod was or is attached to.
fn networks_of(old: Option<&Pod>, new: Option<&Pod>) -> BTreeSet<NamespacedName> {
    let attached = old.into_iter().chain(new).flat_map(|pod| &pod.attachments);
    attached.map(|attached| attached.network.clone()).collect()
}

/// The nodes whose host ports may be served differently when a pod changes.
fn host_ports_changed(old: Option<&Pod>, new: Option<&Pod>) -> Dirty {
    let claims = |pod: Option<&Pod>| {
        pod.map(|pod| (pod.node.clone(), pod.host_ports().collect::<Vec<_>>()))
            .filter(|(_, claims)| !claims.is_empty())
    };
    let (old, new) = (claims(old), claims(new));
    if old == new {
        return Dirty::new();
    }
    [old, new].into_iter().flatten().map(|(node, _)| Unit::HostPorts(node)).collect()
}
