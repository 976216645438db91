//! Index of Services and EndpointSlices with the data that this node needs: node ports, external addresses, services with traffic
//! policy Local, and backends on this node. Everything else is dropped on arrival. What the objects mean is in [`api::service`].

mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::addr::Family;
use api::service::{self, Claims, Condition, EndpointSlice, Hints, Service};
use api::{NamespacedName, Protocol};
use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;

use crate::kube::service_names::ServiceNames;
use udp::UdpServices;
pub use udp::{Backend, Client, InForce, Stale, Translation};

/// Number of other nodes with backends kept per slice, for this node's own connections.
const ELSEWHERE: usize = 8;

/// One port of a service, with its backends on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeServicePort {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port on the service's addresses.
    pub port: u16,
    /// Port on every node, if the service has one.
    pub node_port: Option<u16>,
    /// Backends on this node, address and port, sorted: the ready ones, or, where there is none, those that still serve while
    /// they terminate.
    pub local: Vec<(IpAddr, u16)>,
    /// Names of some other nodes that have backends.
    pub elsewhere: BTreeSet<String>,
}

/// A service that needs something on this node outside OVN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeService {
    /// Namespace and name.
    pub name: NamespacedName,
    /// The cluster addresses, one for each family that the service has.
    pub cluster_ips: Vec<IpAddr>,
    /// External addresses and load balancer addresses that the service may serve, in its families, sorted.
    pub external_ips: Vec<IpAddr>,
    /// External traffic goes only to backends on this node, with the client's address kept.
    pub external_local: bool,
    /// Traffic from inside goes only to backends on this node.
    pub internal_local: bool,
    /// Session affinity: a client stays with its backend.
    pub sticky: bool,
    /// Port on which load balancers ask whether this node has backends.
    pub health_check_port: Option<u16>,
    /// The ports.
    pub ports: Vec<NodeServicePort>,
    /// Number of different ready backend addresses on this node, of the family that has more of them.
    pub local_backends: usize,
}

impl NodeService {
    /// The cluster address of a family, if the service has that family.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.cluster_ips.iter().copied().find(|ip| Family::of(*ip) == family)
    }

    /// The external addresses of a family.
    pub fn external_ips_of(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.external_ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Whether it has an address for clients outside of the cluster.
    pub fn is_outside(&self) -> bool {
        !self.external_ips.is_empty() || self.ports.iter().any(|port| port.node_port.is_some())
    }

    /// Takes the node ports off, for a node that serves none.
    pub fn without_node_ports(&mut self) {
        for port in &mut self.ports {
            port.node_port = None;
        }
    }
}

impl NodeServicePort {
    /// The backends on this node of a family.
    pub fn local_of(&self, family: Family) -> impl Iterator<Item = (IpAddr, u16)> {
        self.local.iter().copied().filter(move |(ip, _)| Family::of(*ip) == family)
    }
}

/// What is kept of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptSlice {
    /// The service.
    owner: NamespacedName,
    /// The slice with only the usable endpoints on this node, sorted, without hints.
    here: EndpointSlice,
    /// Some other nodes with usable endpoints.
    elsewhere: BTreeSet<String>,
}

/// The node's view of all services, fed by watches.
#[derive(Debug)]
pub struct ServiceIndex {
    node: String,
    /// Claims of the services that this node needs; the others have no external addresses.
    claims: Claims,
    /// Addresses of all nodes, as last passed to the claims.
    node_addresses: BTreeSet<IpAddr>,
    services: BTreeMap<NamespacedName, Service>,
    slices: BTreeMap<NamespacedName, KeptSlice>,
    /// UDP ports of all services, with backends on all nodes.
    udp: UdpServices,
    /// Names of all services by address.
    names: ServiceNames,
}

impl ServiceIndex {
    /// Creates an empty index for the node `node`. No service may serve an address in `own`, the ranges of the cluster, as an external
    /// address.
    pub fn new(node: &str, own: Vec<IpNet>) -> Self {
        Self {
            node: node.to_owned(),
            udp: UdpServices::new(node, &own),
            claims: Claims::new(own),
            node_addresses: BTreeSet::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            names: ServiceNames::default(),
        }
    }

    /// Keeps the names of all services in `names`, for display.
    pub fn with_names(self, names: ServiceNames) -> Self {
        Self { names, ..self }
    }

    /// Sets the addresses of all nodes, which no service may serve. Otherwise a user who may create services could redirect the node's
    /// own connections, to itself and to the API server, to pods of that user. OVN's load balancers omit the same addresses; the
    /// controller reports that to the owner of the service.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.claims.nodes(&self.node_addresses, &addresses);
        self.node_addresses = addresses;
    }

    /// Adds or updates a service. Returns true when something that this node uses has changed.
    pub fn apply_service(&mut self, object: &core::Service) -> bool {
        // The controller reports the problems.
        let (service, _problems) = Service::from_object(object);
        self.names.set(&service.name, Some(&service));
        self.udp.set_service(&service.name, Some(&service));
        if !is_needed(&service) {
            return self.forget_service(&service.name);
        }
        let old = self.services.get(&service.name);
        if old == Some(&service) {
            return false;
        }
        self.claims.change(old, Some(&service));
        self.services.insert(service.name.clone(), service);
        true
    }

    /// Removes a service. Returns true when this node used it.
    pub fn delete_service(&mut self, object: &core::Service) -> bool {
        let name = NamespacedName::from(&object.metadata);
        self.names.set(&name, None);
        self.udp.set_service(&name, None);
        self.forget_service(&name)
    }

    fn forget_service(&mut self, name: &NamespacedName) -> bool {
        let Some(old) = self.services.remove(name) else { return false };
        self.claims.change(Some(&old), None);
        true
    }

    /// Adds or updates a slice. Returns true when the backends on this node have changed.
    pub fn apply_slice(&mut self, object: &discovery::EndpointSlice) -> bool {
        let name = NamespacedName::from(&object.metadata);
        let (slice, _problems) = EndpointSlice::from_object(object);
        self.udp.set_slice(&name, Some(&slice));
        let new = keep_slice(slice, &self.node);
        let old = match &new {
            Some(kept) => self.slices.insert(name, kept.clone()),
            None => self.slices.remove(&name),
        };
        self.matters(old.as_ref(), new.as_ref())
    }

    /// Removes a slice. Returns true when it had backends on this node.
    pub fn delete_slice(&mut self, object: &discovery::EndpointSlice) -> bool {
        let name = NamespacedName::from(&object.metadata);
        self.udp.set_slice(&name, None);
        let old = self.slices.remove(&name);
        self.matters(old.as_ref(), None)
    }

    /// Whether a change of a slice matters to this node: its own backends changed, or others of a service that looks for backends
    /// elsewhere.
    fn matters(&self, old: Option<&KeptSlice>, new: Option<&KeptSlice>) -> bool {
        let local = |slice: Option<&KeptSlice>| {
            slice.map(|s| &s.here).filter(|here| !here.endpoints.is_empty()).cloned()
        };
        let looks_elsewhere =
            |slice: &KeptSlice| self.services.get(&slice.owner).is_some_and(|service| service.external_local);
        let remote = |slice: Option<&KeptSlice>| {
            slice.filter(|slice| looks_elsewhere(slice)).map(|slice| slice.elsewhere.clone())
        };
        local(old) != local(new) || remote(old) != remote(new)
    }

    /// Drops services that are not among `alive` (after a watch was restarted).
    pub fn retain_services(&mut self, alive: &BTreeSet<NamespacedName>) {
        let gone: Vec<NamespacedName> =
            self.services.keys().filter(|name| !alive.contains(*name)).cloned().collect();
        for name in gone {
            self.forget_service(&name);
        }
        self.udp.retain_services(alive);
        self.names.retain(alive);
        self.names.set_complete();
    }

    /// Drops slices that are not among `alive` (after a watch was restarted).
    pub fn retain_slices(&mut self, alive: &BTreeSet<NamespacedName>) {
        self.slices.retain(|name, _| alive.contains(name));
        self.udp.retain_slices(alive);
    }

    /// Tracked UDP connections that became stale since the last call, with backends on any node.
    pub fn take_stale_udp(&mut self) -> BTreeSet<Stale> {
        self.udp.take_stale()
    }

    /// The UDP translations of all services.
    pub fn udp_in_force(&self) -> &InForce {
        self.udp.in_force()
    }

    /// The services that need something on this node, in the order of their names.
    pub fn services(&self) -> Vec<NodeService> {
        let mut by_service: BTreeMap<&NamespacedName, Vec<&KeptSlice>> = BTreeMap::new();
        for slice in self.slices.values() {
            by_service.entry(&slice.owner).or_default().push(slice);
        }
        let slices = |name| by_service.get(name).map(Vec::as_slice).unwrap_or_default();
        self.services.values().map(|service| self.view(service, slices(&service.name))).collect()
    }

    fn view(&self, service: &Service, slices: &[&KeptSlice]) -> NodeService {
        let mut service = service.clone();
        self.claims.withhold(&mut service);
        let families: BTreeSet<Family> = service.cluster_ips.iter().copied().map(Family::of).collect();
        let external_ips: BTreeSet<IpAddr> =
            service.external_ips.into_iter().filter(|ip| families.contains(&Family::of(*ip))).collect();
        let endpoints = service::merge(slices.iter().map(|slice| &slice.here));
        let ports = service.ports.iter().map(|port| {
            let behind = endpoints.iter().filter(|endpoint| endpoint.is_behind(port));
            let used = [Family::V4, Family::V6]
                .into_iter()
                .flat_map(|family| service::usable(behind.clone(), family));
            let local: BTreeSet<(IpAddr, u16)> = used.map(|e| (e.address, e.port)).collect();
            let serves = |slice: &&&KeptSlice| {
                slice.here.ports.iter().any(|p| p.name == port.name && p.protocol == port.protocol)
            };
            let elsewhere = slices.iter().filter(serves).flat_map(|slice| &slice.elsewhere);
            NodeServicePort {
                protocol: port.protocol,
                port: port.port,
                node_port: port.node_port,
                local: local.into_iter().collect(),
                elsewhere: elsewhere.take(ELSEWHERE).cloned().collect(),
            }
        });
        let ready = endpoints.iter().filter(|endpoint| endpoint.condition == Condition::Ready);
        let backends: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
        let ipv4 = backends.iter().filter(|ip| ip.is_ipv4()).count();
        NodeService {
            ports: ports.collect(),
            name: service.name,
            cluster_ips: service.cluster_ips,
            external_ips: external_ips.into_iter().collect(),
            external_local: service.external_local,
            internal_local: service.internal_local,
            sticky: service.affinity.is_some(),
            health_check_port: service.health_check_port,
            local_backends: ipv4.max(backends.len() - ipv4),
        }
    }
}

/// False when OVN's load balancers serve the service completely, or nothing serves it.
fn is_needed(service: &Service) -> bool {
    let has_node_port = || service.ports.iter().any(|port| port.node_port.is_some());
    service.is_balanced() && (service.internal_local || !service.external_ips.is_empty() || has_node_port())
}

/// Data to keep of a slice; `None` when it has no usable endpoint on a node.
fn keep_slice(mut here: EndpointSlice, node: &str) -> Option<KeptSlice> {
    let owner = here.owner()?;
    here.endpoints.retain(|endpoint| endpoint.condition != Condition::NotReady);
    let nodes = here.endpoints.iter().filter_map(|endpoint| endpoint.node.as_deref());
    let elsewhere: BTreeSet<&str> = nodes.filter(|name| *name != node).collect();
    let elsewhere: BTreeSet<String> = elsewhere.into_iter().take(ELSEWHERE).map(str::to_owned).collect();
    here.endpoints.retain(|endpoint| endpoint.node.as_deref() == Some(node));
    here.endpoints.shrink_to_fit();
    for endpoint in &mut here.endpoints {
        endpoint.hints = Hints::default();
    }
    here.endpoints.sort_by_key(|endpoint| (endpoint.address, endpoint.condition));
    let empty = here.endpoints.is_empty() && elsewhere.is_empty();
    (!empty).then_some(KeptSlice { owner, here, elsewhere })
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
