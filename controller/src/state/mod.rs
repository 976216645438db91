//! The controller's state apart from the database: the [index](crate::index) and the allocators. Takes the changes that the
//! watches report, one at a time, and returns the effects of each: dirty units, annotations, notices. Synchronous, without a
//! client.

mod annotating;
mod asked;
mod attachments;
mod claims;
mod definitions;
mod external_gateways;
mod ipam_claims;
mod multi_policies;
pub mod network;
mod networks;
mod nodes;
mod pod_object;
mod pods;
mod services_policies;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_definitions;
#[cfg(test)]
mod tests_external_gateways;
#[cfg(test)]
mod tests_networks;
#[cfg(test)]
mod tests_primary;
#[cfg(test)]
mod tests_reach;
#[cfg(test)]
mod tests_secondary;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use api::MacAddr;
use ipnet::IpNet;

use crate::alloc::{Ipam, NetworkIpam, NodeAllocator, Owner, Wish};
use crate::config::Config;
use crate::index::convert::SeenNode;
use crate::index::{Dirty, Index};
use crate::unit::Unit;
pub use annotating::Annotated;
use api::NamespacedName;
use api::pod_attachments::StaticIp;
use api::problem::Problem;
pub use ipam_claims::{ClaimReport, ClaimStatus, NewClaim};
pub use networks::NetworkReport;

/// What a watch reports about one kind.
#[derive(Debug)]
pub enum Watched<T, K> {
    /// The object is there, as given.
    Apply(T),
    /// The object is gone.
    Delete(K),
    /// Complete list of the objects of the kind; it replaces what is known.
    Reset(Vec<T>),
}

/// A Kubernetes object, as events and messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Kind as in a manifest: `Node`, `Pod`, `Service`, ..
    pub kind: &'static str,
    /// Namespace of the object; `None` for kinds without one.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

impl ObjectRef {
    /// An object whose UID is not known.
    pub fn named(kind: &'static str, name: &NamespacedName) -> Self {
        let NamespacedName { namespace, name } = name.clone();
        Self { kind, namespace: Some(namespace), name, uid: String::new() }
    }

    /// An object without namespace whose UID is not known.
    pub fn cluster_wide(kind: &'static str, name: &str) -> Self {
        Self { kind, namespace: None, name: name.to_owned(), uid: String::new() }
    }

    /// The API group and version of its kind.
    pub fn api_version(&self) -> &'static str {
        match self.kind {
            "NetworkPolicy" => "networking.k8s.io/v1",
            "EndpointSlice" => "discovery.k8s.io/v1",
            api::virtual_network::KIND => api::virtual_network::API_VERSION,
            api::onap_network::KIND => api::onap_network::API_VERSION,
            api::multi_policy::KIND => api::multi_policy::API_VERSION,
            api::ipam_claim::KIND => api::ipam_claim::API_VERSION,
            _ => "v1",
        }
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind.to_lowercase(), self.name),
            None => write!(f, "{} {}", self.kind.to_lowercase(), self.name),
        }
    }
}

/// Annotations to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// Object that the annotations are written to.
    pub object: ObjectRef,
    /// Values by key.
    pub annotations: BTreeMap<&'static str, String>,
}

/// Why an object does not get what it requests; the label of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoticeKind {
    /// An object or annotation cannot be read or contradicts others.
    Malformed,
    /// No subnet, number or address is left.
    Exhausted,
    /// Another object has what it claims.
    Conflict,
    /// The northbound database refuses its rows.
    Refused,
    /// The object's name in the database would be the name of something else.
    NameConflict,
    /// A node claims what another node has.
    NodeConflict,
    /// A service's address cannot be served.
    Address,
    /// An annotation of the object cannot be written.
    NotWritten,
    /// A virtual network that a pod asks for is not there, or does not give it what it asks for.
    Network,
    /// A virtual network that a pod asks for has no address left.
    NetworkExhausted,
    /// Something else has the ranges or the name of a virtual network.
    NetworkConflict,
    /// Another pod asks for what this one has on a virtual network.
    AddressConflict,
}

impl NoticeKind {
    /// The reason of an event, for programs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "NetworkAnnotationUnusable",
            Self::Exhausted => "NetworkAddressesExhausted",
            Self::Conflict => "HostPortConflict",
            Self::Refused => "NetworkRefused",
            Self::NameConflict => "NetworkNameConflict",
            Self::NodeConflict => "NodeNetworkConflict",
            Self::Address => "ServiceAddressUnusable",
            Self::NotWritten => "NetworkAnnotationNotWritten",
            Self::Network => "VirtualNetworkUnusable",
            Self::NetworkExhausted => "NetworkAddressesExhausted",
            Self::NetworkConflict => "VirtualNetworkConflict",
            Self::AddressConflict => "VirtualNetworkAddressConflict",
        }
    }
}

/// Something an operator should know about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Why the notice is given.
    pub kind: NoticeKind,
    /// Where an event is published; `None` for objects known by name only.
    pub object: Option<ObjectRef>,
    /// Names object, field and the correct content.
    pub message: String,
}

/// The effects of a change.
#[derive(Debug, Default)]
pub struct Effects {
    /// Units to plan again, together.
    pub dirty: Dirty,
    /// Annotations to write, at the same time as the database.
    pub patches: Vec<Patch>,
    /// Notices to publish.
    pub notices: Vec<Notice>,
    /// UIDs of pods whose addresses become free once the database shows the change.
    pub release: Vec<String>,
    /// UIDs of objects that are gone while an annotation of theirs was on its way.
    pub forgotten: Vec<String>,
}

impl Effects {
    /// Adds the effects of another change.
    pub fn merge(&mut self, other: Self) {
        self.dirty.extend(other.dirty);
        self.patches.extend(other.patches);
        self.notices.extend(other.notices);
        self.release.extend(other.release);
        self.forgotten.extend(other.forgotten);
    }
}

/// A pod port found in the database at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPort {
    /// The pod's UID (`iface-id-ver`).
    pub uid: String,
    /// The switch it is on.
    pub node: String,
    /// Addresses of the port.
    pub ips: Vec<IpAddr>,
    /// MAC address of the port.
    pub mac: MacAddr,
}

/// A pod's port on a virtual network, found in the database at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAttachment {
    /// Name of the network.
    pub network: NamespacedName,
    /// Pod that the port belongs to, and its interface.
    pub owner: Owner,
    /// Addresses of the port.
    pub ips: Vec<StaticIp>,
    /// MAC address of the port.
    pub mac: MacAddr,
}

impl FoundAttachment {
    /// What keeps the pod what it has.
    fn wish(&self) -> Wish<'_> {
        Wish { ips: &self.ips, mac: Some(self.mac), claim: None, is_old: true }
    }
}

/// A node found in the database at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundNode {
    /// Name of the node.
    pub name: String,
    /// Ranges of its switch.
    pub subnets: Vec<IpNet>,
    /// The number by which its gateway router is on the join switch.
    pub id: u32,
}

/// Index and allocators.
#[derive(Debug)]
pub struct State {
    /// What is planned by: networks, names and features.
    pub config: Config,
    /// Objects of the cluster, as plain structs.
    pub index: Index,
    nodes: NodeAllocator,
    ipam: Ipam,
    /// Virtual networks, ready and not.
    networks: networks::Networks,
    /// Physical networks of nodes, for virtual networks that are on one.
    physical_networks: networks::PhysicalNetworks,
    /// NetworkAttachmentDefinitions.
    definitions: definitions::Definitions,
    /// Policies of virtual networks.
    multi_policies: multi_policies::Known,
    /// IPAMClaims, by which addresses on virtual networks outlive pods.
    ipam_claims: ipam_claims::IpamClaims,
    /// Addresses on virtual networks.
    network_ipam: NetworkIpam,
    /// Nodes that have no ranges because of an error.
    failed_nodes: BTreeMap<String, SeenNode>,
    /// Pods without an address, oldest first.
    waiting: waiting::Waiting,
    /// Ports found at start whose pods have not been seen yet.
    found_ports: Vec<FoundPort>,
    /// Ports of pods on virtual networks found in the database at start, until pods are listed.
    found_attachments: Vec<FoundAttachment>,
    /// Annotations on their way, by the object's UID.
    annotating: HashMap<String, annotating::Underway>,
    /// Pod UIDs by name, including pods that are not in the index.
    uids: BTreeMap<NamespacedName, String>,
    /// Nodes in the database at start.
    found_nodes: Vec<FoundNode>,
    /// What nodes have that only one node may have.
    claims: claims::NodeClaims,
    /// Nodes that lack something because another node has it.
    conflicting: BTreeMap<String, SeenNode>,
    /// What has been reported to services about their addresses.
    told_addresses: BTreeMap<NamespacedName, BTreeSet<String>>,
    /// What has been reported to namespaces about their external gateways.
    told_gateways: BTreeMap<String, external_gateways::Told>,
    /// The first list of pods has been read.
    pods_listed: bool,
    /// The time of the report that is being handled.
    now: Instant,
}

impl State {
    /// A state in which nothing is known yet.
    pub fn new(config: Config) -> Self {
        Self {
            nodes: NodeAllocator::new(&config),
            index: Index::new(config.cluster_subnets.iter().map(|subnet| subnet.cidr).collect())
                .with_own_ranges(config.own_ranges())
                .with_host_network_namespace(config.host_network_namespace.clone()),
            ipam: Ipam::default(),
            networks: networks::Networks::default(),
            physical_networks: networks::PhysicalNetworks::default(),
            definitions: definitions::Definitions::default(),
            multi_policies: multi_policies::Known::default(),
            ipam_claims: ipam_claims::IpamClaims::default(),
            network_ipam: NetworkIpam::default(),
            failed_nodes: BTreeMap::new(),
            waiting: waiting::Waiting::default(),
            found_ports: Vec::new(),
            found_attachments: Vec::new(),
            annotating: HashMap::new(),
            uids: BTreeMap::new(),
            found_nodes: Vec::new(),
            claims: claims::NodeClaims::default(),
            conflicting: BTreeMap::new(),
            told_addresses: BTreeMap::new(),
            told_gateways: BTreeMap::new(),
            pods_listed: false,
            now: Instant::now(),
            config,
        }
    }

    /// Sets the time, which decides when addresses have rested long enough.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
    }

    /// Passes the nodes that the database holds, before the first node.
    pub fn found_nodes(&mut self, nodes: Vec<FoundNode>) {
        self.found_nodes = nodes;
    }

    /// Passes the pod ports that the database holds, before the first pod.
    pub fn found_ports(&mut self, ports: Vec<FoundPort>) {
        self.found_ports = ports;
    }

    /// Passes the pod ports on virtual networks that the database holds, before the first pod and after the networks.
    pub fn found_attachments(&mut self, ports: Vec<FoundAttachment>) {
        self.found_attachments = ports;
    }

    /// The database refuses the rows of an object's unit.
    pub fn refused(&self, unit: &Unit, error: &str) -> Effects {
        let object = match unit {
            Unit::Node(name)
            | Unit::HostPorts(name)
            | Unit::ExternalGateways(name)
            | Unit::NodePeers(name) => self.node_object(name),
            Unit::Pod(name) => self.pod_object(name),
            Unit::Service(name) => ObjectRef::named("Service", name),
            Unit::Policy(name) => ObjectRef::named("NetworkPolicy", name),
            Unit::Network(name) | Unit::NetworkOnNode(name, _) => {
                ObjectRef::named(api::virtual_network::KIND, name)
            }
            Unit::MultiPolicy(_, name) => ObjectRef::named(api::multi_policy::KIND, name),
            Unit::PolicyNamespace(name) | Unit::MultiPolicyNamespace(_, name) => {
                ObjectRef::cluster_wide("Namespace", name)
            }
            Unit::Cluster => return Effects::default(),
        };
        let message =
            format!("{unit}: the northbound database refuses its rows, which are left out: {error}");
        let notice = Notice { kind: NoticeKind::Refused, object: Some(object), message };
        Effects { notices: vec![notice], ..Effects::default() }
    }

    fn node_object(&self, name: &str) -> ObjectRef {
        ObjectRef::cluster_wide("Node", name)
    }

    fn pod_object(&self, name: &NamespacedName) -> ObjectRef {
        let uid = self.uids.get(name).cloned().unwrap_or_default();
        ObjectRef { uid, ..ObjectRef::named("Pod", name) }
    }

    /// Every unit.
    pub fn units(&self) -> BTreeSet<Unit> {
        self.index.units()
    }

    /// Number of pods that have an address, and number of pods that wait for one.
    pub fn address_counts(&self) -> (usize, usize) {
        (self.ipam.len(), self.waiting.len())
    }
}

/// The notices of an object's problems.
fn notices(problems: &[Problem], object: Option<&ObjectRef>) -> Vec<Notice> {
    problems
        .iter()
        .map(|problem| Notice {
            kind: NoticeKind::Malformed,
            object: object.cloned(),
            message: format!("{}: {}", problem.object, problem.message),
        })
        .collect()
}
