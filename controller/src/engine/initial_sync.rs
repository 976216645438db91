//! Initial sync: no decision is made before every kind has been listed once. Otherwise rows could be deleted, or addresses assigned, to
//! which an object not yet seen has a right. A standby stays in this state, so that it knows all objects when it becomes leader.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use api::pod_attachments::StaticIp;
use api::{MacAddr, addr, ovn_name};
use ipnet::IpNet;
use ovsdb_client::{Snapshot, nb};

use crate::alloc::Owner;
use crate::config::Config;
use crate::index::Namespace;
use crate::index::convert::{SeenNode, SeenPod};
use crate::index::network::{SeenClaim, SeenDefinition, SeenNetwork};
use crate::index::policy::{Policy, SeenMultiPolicy};
use crate::reconcile::foreign::of_virtual_network;
use crate::state::{Effects, FoundAttachment, FoundNode, FoundPort, State, Watched};
use api::NamespacedName;
use api::problem::Problem;
use api::service::{EndpointSlice, Service};

/// A report of one of the watches. Objects come with their problems.
#[derive(Debug)]
pub enum Input {
    /// Nodes, by name.
    Nodes(Watched<SeenNode, String>),
    /// Pods.
    Pods(Watched<SeenPod, NamespacedName>),
    /// Namespaces, by name.
    Namespaces(Watched<(Namespace, Vec<Problem>), String>),
    /// Services.
    Services(Watched<(Service, Vec<Problem>), NamespacedName>),
    /// EndpointSlices.
    EndpointSlices(Watched<(EndpointSlice, Vec<Problem>), NamespacedName>),
    /// NetworkPolicies.
    Policies(Watched<(Policy, Vec<Problem>), NamespacedName>),
    /// MultiNetworkPolicies.
    MultiPolicies(Watched<SeenMultiPolicy, NamespacedName>),
    /// VirtualNetworks.
    Networks(Watched<SeenNetwork, NamespacedName>),
    /// `None`: the API server does not know the kind.
    Definitions(Option<Watched<SeenDefinition, NamespacedName>>),
    /// `None`: the API server does not know the kind.
    Claims(Option<Watched<SeenClaim, NamespacedName>>),
}

/// Applies a report to the state.
pub(super) fn apply(state: &mut State, input: Input) -> Effects {
    match input {
        Input::Nodes(change) => state.nodes(change),
        Input::Pods(change) => state.pods(change),
        Input::Namespaces(change) => state.namespaces(change),
        Input::Services(change) => state.services(change),
        Input::EndpointSlices(change) => state.endpoint_slices(change),
        Input::Policies(change) => state.policies(change),
        Input::MultiPolicies(change) => state.multi_policies(change),
        Input::Networks(change) => state.virtual_networks(change),
        Input::Definitions(change) => state.definitions(change),
        Input::Claims(change) => state.ipam_claims(change),
    }
}

/// The objects of one kind, as they were last seen.
#[derive(Debug)]
struct Kind<T, K> {
    listed: bool,
    objects: BTreeMap<K, T>,
}

impl<T, K: Ord> Kind<T, K> {
    fn take(&mut self, change: Watched<T, K>, key: impl Fn(&T) -> K) {
        match change {
            Watched::Apply(object) => drop(self.objects.insert(key(&object), object)),
            Watched::Delete(key) => drop(self.objects.remove(&key)),
            Watched::Reset(all) => {
                self.listed = true;
                self.objects = all.into_iter().map(|object| (key(&object), object)).collect();
            }
        }
    }

    fn into_list(self) -> Watched<T, K> {
        Watched::Reset(self.objects.into_values().collect())
    }
}

impl<T, K> Default for Kind<T, K> {
    fn default() -> Self {
        Self { listed: false, objects: BTreeMap::new() }
    }
}

/// All objects, as long as no decision may be made: until all kinds are listed, and while another controller leads. It holds
/// each object once.
#[derive(Debug, Default)]
pub(super) struct Seeding {
    nodes: Kind<SeenNode, String>,
    namespaces: Kind<(Namespace, Vec<Problem>), String>,
    services: Kind<(Service, Vec<Problem>), NamespacedName>,
    slices: Kind<(EndpointSlice, Vec<Problem>), NamespacedName>,
    policies: Kind<(Policy, Vec<Problem>), NamespacedName>,
    multi_policies: Kind<SeenMultiPolicy, NamespacedName>,
    networks: Kind<SeenNetwork, NamespacedName>,
    definitions: Kind<SeenDefinition, NamespacedName>,
    /// Whether the API server knows the kind of the definitions.
    has_definitions: bool,
    claims: Kind<SeenClaim, NamespacedName>,
    /// Whether the API server knows the kind of the claims.
    has_claims: bool,
    pods: Kind<SeenPod, NamespacedName>,
}

impl Seeding {
    /// Takes a report.
    pub(super) fn take(&mut self, input: Input) {
        match input {
            Input::Nodes(change) => self.nodes.take(change, |node| node.name.clone()),
            Input::Pods(change) => self.pods.take(change, |seen| seen.pod.name.clone()),
            Input::Namespaces(change) => {
                self.namespaces.take(change, |(namespace, _)| namespace.name.clone())
            }
            Input::Services(change) => self.services.take(change, |(service, _)| service.name.clone()),
            Input::EndpointSlices(change) => self.slices.take(change, |(slice, _)| slice.name.clone()),
            Input::Policies(change) => self.policies.take(change, |(policy, _)| policy.name.clone()),
            Input::MultiPolicies(change) => self.multi_policies.take(change, |seen| seen.policy.name.clone()),
            Input::Networks(change) => self.networks.take(change, |seen| seen.name.clone()),
            Input::Definitions(change) => {
                self.has_definitions = change.is_some();
                let change = change.unwrap_or_else(|| Watched::Reset(Vec::new()));
                self.definitions.take(change, |seen| seen.name.clone());
            }
            Input::Claims(change) => {
                self.has_claims = change.is_some();
                let change = change.unwrap_or_else(|| Watched::Reset(Vec::new()));
                self.claims.take(change, |seen| seen.name.clone());
            }
        }
    }

    fn lists(&self) -> [(&'static str, bool); 10] {
        [
            ("nodes", self.nodes.listed),
            ("namespaces", self.namespaces.listed),
            ("services", self.services.listed),
            ("endpoint slices", self.slices.listed),
            ("network policies", self.policies.listed),
            ("multi-network policies", self.multi_policies.listed),
            ("virtual networks", self.networks.listed),
            ("network attachment definitions", self.definitions.listed),
            ("IPAM claims", self.claims.listed),
            ("pods", self.pods.listed),
        ]
    }

    /// Whether every kind has been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.lists().iter().all(|(_, listed)| *listed)
    }

    /// The kinds that have not been listed.
    pub(super) fn missing(&self) -> String {
        let missing: Vec<_> =
            self.lists().into_iter().filter(|(_, listed)| !listed).map(|(kind, _)| kind).collect();
        missing.join(", ")
    }

    /// All objects as first lists: nodes first, networks before the claims of their addresses, and both before the pods on them.
    pub(super) fn into_inputs(self) -> [Input; 10] {
        [
            Input::Nodes(self.nodes.into_list()),
            Input::Namespaces(self.namespaces.into_list()),
            Input::Networks(self.networks.into_list()),
            Input::Definitions(self.has_definitions.then(|| self.definitions.into_list())),
            Input::Claims(self.has_claims.then(|| self.claims.into_list())),
            Input::Pods(self.pods.into_list()),
            Input::Services(self.services.into_list()),
            Input::EndpointSlices(self.slices.into_list()),
            Input::Policies(self.policies.into_list()),
            Input::MultiPolicies(self.multi_policies.into_list()),
        ]
    }
}

/// A pod's port: the pod's UID and the addresses; `None` for other ports.
fn pod_port(port: &nb::LogicalSwitchPort) -> Option<(String, Vec<IpAddr>, MacAddr)> {
    port.external_ids.get("pod").filter(|pod| *pod == "true")?;
    let uid = port.options.get("iface-id-ver")?;
    // `MAC IP [IP]`
    let mut words = port.addresses.iter().next()?.split(' ');
    let mac = words.next()?.parse::<MacAddr>().ok()?;
    let ips: Vec<_> = words.filter_map(|ip| ip.parse().ok()).collect();
    (!ips.is_empty()).then(|| (uid.clone(), ips, mac))
}

/// The pod ports on nodes' switches that the database holds.
pub(super) fn found_ports(snapshot: &Snapshot<'_>) -> Vec<FoundPort> {
    let ports = snapshot.table::<nb::LogicalSwitchPort>();
    let mut found = Vec::new();
    for switch in snapshot.table::<nb::LogicalSwitch>().iter() {
        if of_virtual_network(&switch.external_ids) {
            continue;
        }
        for port in switch.ports.iter().filter_map(|uuid| ports.get(uuid)) {
            if let Some((uid, ips, mac)) = pod_port(port) {
                found.push(FoundPort { uid, node: switch.name.clone(), ips, mac });
            }
        }
    }
    found.sort_by(|a, b| a.uid.cmp(&b.uid));
    found
}

/// The pod ports on virtual networks that the database holds.
pub(super) fn found_attachments(snapshot: &Snapshot<'_>) -> Vec<FoundAttachment> {
    let ports = snapshot.table::<nb::LogicalSwitchPort>().iter();
    let found = ports.filter_map(|port| {
        let network = port.external_ids.get(ovn_name::key::VIRTUAL_NETWORK)?.parse().ok()?;
        let key = port.external_ids.get(ovn_name::key::NAD)?.clone();
        let (uid, ips, mac) = pod_port(port)?;
        let ips = ips.into_iter().map(|ip| StaticIp { ip, prefix_len: None }).collect();
        Some(FoundAttachment { network, owner: Owner { uid, key }, ips, mac })
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by(|a, b| a.owner.cmp(&b.owner));
    found
}

/// UIDs of the pods that have a port in the database.
pub(super) fn port_uids(snapshot: &Snapshot<'_>) -> HashSet<String> {
    let ports = snapshot.table::<nb::LogicalSwitchPort>().iter();
    ports.filter_map(|port| port.options.get("iface-id-ver").cloned()).collect()
}

/// The nodes that the database holds: switches with their ranges, and the numbers of their gateway routers on the join switch.
pub(super) fn found_nodes(snapshot: &Snapshot<'_>, config: &Config) -> Vec<FoundNode> {
    let router_ports = snapshot.table::<nb::LogicalRouterPort>();
    let mut found = Vec::new();
    for switch in snapshot.table::<nb::LogicalSwitch>().iter() {
        if of_virtual_network(&switch.external_ids) {
            continue;
        }
        let join = ovn_name::router_to_join(&ovn_name::gateway_router(&switch.name));
        let joined = router_ports.iter().find(|port| port.name == join);
        let id = joined.and_then(|port| {
            port.networks.iter().filter_map(|net| net.parse::<IpNet>().ok()).find_map(|net| {
                let range = config.join(net.addr())?;
                (2..=u32::from(u16::MAX)).find(|id| addr::join_of(&range, *id) == Some(net.addr()))
            })
        });
        let subnet = switch.other_config.get("subnet").and_then(|net| net.parse::<IpNet>().ok());
        let prefix = switch.other_config.get("ipv6_prefix").and_then(|ip| ip.parse::<Ipv6Addr>().ok());
        let lengths = |ip: IpAddr| {
            config
                .cluster_subnets
                .iter()
                .find(|subnet| subnet.cidr.contains(&ip))
                .map(|subnet| subnet.host_len)
        };
        let v6 = prefix.and_then(|ip| IpNet::new(ip.into(), lengths(ip.into())?).ok());
        let subnets: Vec<IpNet> = subnet.into_iter().chain(v6).collect();
        if let (Some(id), false) = (id, subnets.is_empty()) {
            found.push(FoundNode { name: switch.name.clone(), subnets, id });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, label: &str) -> (Namespace, Vec<Problem>) {
        let object = serde_json::json!({ "metadata": { "name": name, "labels": { "is": label } } });
        crate::index::convert::namespace(serde_json::from_value(object).unwrap()).unwrap()
    }

    fn namespaces(seeding: Seeding) -> Vec<(String, String)> {
        let [_, Input::Namespaces(Watched::Reset(all)), ..] = seeding.into_inputs() else {
            panic!("namespaces come second, as a list")
        };
        all.into_iter().map(|(namespace, _)| (namespace.name, namespace.labels["is"].clone())).collect()
    }

    #[test]
    fn of_each_object_the_last_report_is_kept_and_nothing_else() {
        let mut seeding = Seeding::default();
        seeding.take(Input::Namespaces(Watched::Reset(vec![namespace("a", "1"), namespace("b", "1")])));
        for n in 0..100 {
            seeding.take(Input::Namespaces(Watched::Apply(namespace("c", &n.to_string()))));
        }
        seeding.take(Input::Namespaces(Watched::Delete("a".to_owned())));
        assert_eq!(seeding.namespaces.objects.len(), 2);
        assert_eq!(
            namespaces(seeding),
            [("b".into(), "1".into()), ("c".into(), "99".into())] as [(String, String); 2]
        );
    }

    #[test]
    fn a_new_list_takes_the_place_of_all_that_was_seen() {
        let mut seeding = Seeding::default();
        seeding.take(Input::Namespaces(Watched::Apply(namespace("a", "1"))));
        assert!(seeding.missing().contains("namespaces"), "an object is no list");
        seeding.take(Input::Namespaces(Watched::Reset(vec![namespace("b", "2")])));
        assert!(!seeding.missing().contains("namespaces"));
        assert_eq!(namespaces(seeding), [("b".to_owned(), "2".to_owned())]);
    }
}
