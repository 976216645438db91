//! Virtual networks: as the API server has them, and as planning needs them.

use std::collections::{BTreeMap, BTreeSet};

use api::annotation::PodRoute;
use api::ipam_claim::{Claim, IpamClaim};
use api::network_attachment::{Definition, NetworkAttachmentDefinition};
use api::virtual_network::{
    FINALIZER, Localnet, Reach, Scope, SpecError, Subnet, VirtualNetwork, VirtualNetworkSpec,
    VirtualNetworkStatus,
};
use api::{MacAddr, NamespacedName};
use ipnet::IpNet;
use std::net::IpAddr;

use super::{Dirty, Index};
use crate::unit::Unit;

/// A network as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenNetwork {
    /// Name of the network.
    pub name: NamespacedName,
    /// `metadata.uid`.
    pub uid: String,
    /// Creation time, seconds since the epoch: of two networks with the same claim the older one wins.
    pub created: i64,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Somebody has deleted it, and it stays until its finalizers are gone.
    pub deleting: bool,
    /// Our finalizer is on it.
    pub finalizer: bool,
    /// The specification, or the field that is wrong.
    pub spec: Result<VirtualNetworkSpec, SpecError>,
    /// The status that the controller wrote last.
    pub status: VirtualNetworkStatus,
}

/// Reads a network.
pub fn read(object: &VirtualNetwork) -> SeenNetwork {
    let metadata = &object.metadata;
    SeenNetwork {
        name: NamespacedName::from(metadata),
        uid: metadata.uid.clone().unwrap_or_default(),
        created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        generation: metadata.generation,
        deleting: metadata.deletion_timestamp.is_some(),
        finalizer: metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER),
        spec: object.read_spec(),
        status: object.read_status(),
    }
}

/// A NetworkAttachmentDefinition as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDefinition {
    /// Name of the NetworkAttachmentDefinition.
    pub name: NamespacedName,
    /// What the definition means for Slipstream.
    pub definition: Definition,
}

/// Reads a NetworkAttachmentDefinition.
pub fn read_definition(object: &NetworkAttachmentDefinition) -> SeenDefinition {
    SeenDefinition { name: NamespacedName::from(&object.metadata), definition: object.read() }
}

/// An IPAMClaim as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenClaim {
    /// Name of the IPAMClaim.
    pub name: NamespacedName,
    /// `metadata.uid`.
    pub uid: String,
    /// What it says, or the field that is wrong.
    pub claim: Result<Claim, String>,
}

/// Reads an IPAMClaim.
pub fn read_claim(object: &IpamClaim) -> SeenClaim {
    let uid = object.metadata.uid.clone().unwrap_or_default();
    SeenClaim { name: NamespacedName::from(&object.metadata), uid, claim: object.read() }
}

/// A network that pods may attach to: its fields are right, and nobody else has its ranges or its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Name of the network.
    pub name: NamespacedName,
    /// Creation time, seconds since the epoch: of peers with a range in common the oldest is connected.
    pub created: i64,
    /// Namespaces whose pods may attach.
    pub scope: Scope,
    /// How far packets of the network get.
    pub reach: Reach,
    /// Ranges of the network, at most one for each family.
    pub subnets: Vec<Subnet>,
    /// The physical network, exactly with reach `Localnet`.
    pub localnet: Option<Localnet>,
    /// Networks that it lists as its peers ([`super::peers`]).
    pub peers: Vec<NamespacedName>,
    /// MTU of the pods' interfaces, bytes.
    pub mtu: u32,
    /// First bytes of MAC addresses that follow from pods' addresses.
    pub mac_prefix: [u8; 2],
    /// Addresses of pods of StatefulSets outlive the pods.
    pub persistent: bool,
}

impl Network {
    /// Name of its logical switch. A network for all pods has its own name there, as networks of every cluster had it when each
    /// was for all pods; of two such networks with one name the older one has it. Another network has its namespace in front:
    /// two namespaces may have networks of one name. Neither holds a `_` or a `/`, but a node may have either name; the network
    /// gives way to the node then.
    pub fn switch(&self) -> String {
        match self.scope {
            Scope::Cluster => self.name.name.clone(),
            Scope::Namespace => format!("{}.{}", self.name.namespace, self.name.name),
        }
    }

    /// MAC address of its port on a router, the cluster router or one to its peers; none if it has no such port. A network that lists
    /// peers has it whether there are any or not, so that its gateway is no pod when they come.
    pub fn router_mac(&self) -> Option<MacAddr> {
        let gateway = self.subnets.first().map(|subnet| subnet.gateway);
        gateway.map(MacAddr::from_ip).filter(|_| self.reach.is_routed() || !self.peers.is_empty())
    }

    /// Whether pods of a namespace may attach to it.
    pub fn serves(&self, namespace: &str) -> bool {
        self.scope == Scope::Cluster || self.name.namespace == namespace
    }

    /// Whether all of these are addresses of the network.
    pub fn holds(&self, addresses: &[IpNet]) -> bool {
        let held = |net: &IpNet| self.subnets.iter().any(|subnet| subnet.net.contains(&net.addr()));
        addresses.iter().all(held)
    }
}

/// A pod's interface on a network, with what the pod got there when it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Key of the entry in the pod's annotation.
    pub key: String,
    /// Name of the network.
    pub network: NamespacedName,
    /// Name of the interface inside the pod.
    pub interface: String,
    /// Addresses with the prefix lengths of the network's ranges.
    pub addresses: Vec<IpNet>,
    /// MAC address of the interface.
    pub mac: MacAddr,
    /// Gateways of the pod's default route, if it goes through this interface.
    pub default_gateways: Vec<IpAddr>,
    /// Further routes through this interface.
    pub routes: Vec<PodRoute>,
    /// MTU of the interface, bytes.
    pub mtu: u32,
    /// The agent asks on the network whether others use the addresses before the pod has them.
    pub detect_duplicates: bool,
}

/// The networks of the index, and which pods are attached to them.
#[derive(Debug, Default)]
pub struct Networks {
    /// Networks that pods may attach to.
    pub ready: BTreeMap<NamespacedName, Network>,
    /// Names of the pods that are attached to a network, whether it is ready or not.
    pods: BTreeMap<NamespacedName, BTreeSet<NamespacedName>>,
}

impl Networks {
    /// Names of the pods that are attached to a network.
    pub fn pods_of(&self, network: &NamespacedName) -> impl Iterator<Item = &NamespacedName> {
        self.pods.get(network).into_iter().flatten()
    }

    /// A pod's attachments changed.
    pub(super) fn attach(&mut self, pod: &NamespacedName, old: &[Attached], new: &[Attached]) {
        for Attached { network, .. } in old {
            if let Some(pods) = self.pods.get_mut(network) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.pods.remove(network);
                }
            }
        }
        for Attached { network, .. } in new {
            self.pods.entry(network.clone()).or_default().insert(pod.clone());
        }
    }

    /// The units of one node that belong to networks.
    pub(super) fn units_of_node(&self, node: &str) -> impl Iterator<Item = Unit> {
        let outside = self.ready.values().filter(|network| network.reach == Reach::Outside);
        outside.map(move |network| Unit::NetworkOnNode(network.name.clone(), node.to_owned()))
    }
}

impl Index {
    /// Adds or updates a network.
    pub fn apply_network(&mut self, network: Network) -> Dirty {
        if self.networks.ready.get(&network.name) == Some(&network) {
            return Dirty::new();
        }
        let name = network.name.clone();
        let mut dirty = self.network_units(&name);
        self.networks.ready.insert(name.clone(), network);
        dirty.extend(self.network_units(&name));
        dirty
    }

    /// Removes a network.
    pub fn delete_network(&mut self, name: &NamespacedName) -> Dirty {
        let dirty = self.network_units(name);
        self.networks.ready.remove(name);
        dirty
    }

    /// The units with rows of a network; none if it is not ready.
    fn network_units(&self, name: &NamespacedName) -> Dirty {
        let Some(network) = self.networks.ready.get(name) else { return Dirty::new() };
        let mut units = Dirty::from([Unit::Network(name.clone())]);
        units.extend(self.networks.around(name).into_iter().map(Unit::Network));
        units.extend(self.networks.pods_of(name).cloned().map(Unit::Pod));
        units.extend(self.multi_policies.units_of(name));
        if network.reach == Reach::Outside {
            units.extend(self.nodes.keys().map(|node| Unit::NetworkOnNode(name.clone(), node.clone())));
        }
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(scope: Scope, reach: Reach) -> Network {
        let net: IpNet = "172.16.24.0/24".parse().unwrap();
        let gateway = api::addr::gateway_of(&net).unwrap();
        let subnets = vec![Subnet { net, gateway, excluded: Vec::new() }];
        Network {
            name: NamespacedName::new("shop", "blue"),
            created: 0,
            scope,
            reach,
            subnets,
            localnet: None,
            peers: Vec::new(),
            mtu: 1400,
            mac_prefix: MacAddr::PREFIX,
            persistent: false,
        }
    }

    #[test]
    fn a_network_for_all_pods_has_its_own_name_and_others_their_namespace_in_front() {
        assert_eq!(network(Scope::Cluster, Reach::Isolated).switch(), "blue");
        assert_eq!(network(Scope::Namespace, Reach::Isolated).switch(), "shop.blue");
    }

    #[test]
    fn only_a_routed_network_has_a_router() {
        assert_eq!(network(Scope::Cluster, Reach::Isolated).router_mac(), None);
        let mac = network(Scope::Cluster, Reach::Outside).router_mac().unwrap();
        assert_eq!(mac.to_string(), "0a:58:ac:10:18:01");
    }

    #[test]
    fn a_network_makes_its_pods_dirty_and_where_it_reaches_the_outside_every_node() {
        let mut index = Index::new(Vec::new());
        let blue = NamespacedName::new("shop", "blue");
        let pod = NamespacedName::new("shop", "a");
        let attached = Attached {
            key: "shop/blue".to_owned(),
            network: blue.clone(),
            interface: "net1".to_owned(),
            addresses: Vec::new(),
            mac: MacAddr::default(),
            default_gateways: Vec::new(),
            routes: Vec::new(),
            mtu: 1400,
            detect_duplicates: false,
        };
        index.networks.attach(&pod, &[], std::slice::from_ref(&attached));
        let all = Dirty::from([Unit::Network(blue.clone()), Unit::Pod(pod.clone())]);
        assert_eq!(index.apply_network(network(Scope::Cluster, Reach::Outside)), all);
        assert!(index.apply_network(network(Scope::Cluster, Reach::Outside)).is_empty());
        assert_eq!(index.networks.units_of_node("n1").count(), 1);
        index.networks.attach(&pod, &[attached], &[]);
        assert!(index.networks.pods.is_empty());
        assert_eq!(index.delete_network(&blue), Dirty::from([Unit::Network(blue.clone())]));
        assert!(index.delete_network(&blue).is_empty());
    }
}
