//! All services and endpoint slices, and which services a change makes dirty.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::unit::Unit;
use api::NamespacedName;
use api::service::{self, Claims, Endpoint, EndpointSlice, Hints, Refusal, Service};

/// Services and endpoint slices. Every change returns the units to plan again.
#[derive(Debug, Default)]
pub struct ServiceStore {
    cluster_subnets: Vec<IpNet>,
    services: BTreeMap<NamespacedName, Service>,
    slices: BTreeMap<NamespacedName, EndpointSlice>,
    /// Names of the slices of a service.
    by_service: BTreeMap<NamespacedName, BTreeSet<String>>,
    claims: Claims,
}

impl ServiceStore {
    /// `cluster_subnets`: the ranges of pods; endpoints with other addresses are on a host. Without any range, every service with
    /// endpoints counts as one that depends on nodes.
    pub fn new(cluster_subnets: Vec<IpNet>) -> Self {
        Self { cluster_subnets, ..Self::default() }
    }

    /// Ranges whose addresses no service may claim as external ones.
    #[must_use]
    pub fn with_own_ranges(self, own: Vec<IpNet>) -> Self {
        Self { claims: Claims::new(own), ..self }
    }

    /// The addresses of a node changed from `old` to `new`.
    pub fn node_addresses(&mut self, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) -> BTreeSet<Unit> {
        self.claims.nodes(old, new).into_iter().map(Unit::Service).collect()
    }

    /// A service with those of its external addresses that it may serve.
    pub fn served(&self, name: &NamespacedName) -> Option<Service> {
        let mut service = self.services.get(name)?.clone();
        self.claims.withhold(&mut service);
        Some(service)
    }

    /// The external addresses that a service may not serve.
    pub fn refused(&self, name: &NamespacedName) -> Vec<(IpAddr, Refusal)> {
        self.services.get(name).map(|service| self.claims.refused(service)).unwrap_or_default()
    }

    /// A service was added or changed.
    pub fn apply(&mut self, service: Service) -> BTreeSet<Unit> {
        if self.services.get(&service.name) == Some(&service) {
            return BTreeSet::new();
        }
        let name = service.name.clone();
        let concerned = self.claims.change(self.services.get(&name), Some(&service));
        self.services.insert(name.clone(), service);
        concerned.into_iter().chain([name]).map(Unit::Service).collect()
    }

    /// A service is gone.
    pub fn delete(&mut self, name: &NamespacedName) -> BTreeSet<Unit> {
        let Some(old) = self.services.remove(name) else { return BTreeSet::new() };
        let concerned = self.claims.change(Some(&old), None);
        concerned.into_iter().chain([old.name]).map(Unit::Service).collect()
    }

    /// A slice was added or changed. Its service before and after are dirty.
    pub fn apply_slice(&mut self, slice: EndpointSlice) -> BTreeSet<Unit> {
        if self.slices.get(&slice.name) == Some(&slice) {
            return BTreeSet::new();
        }
        let mut dirty = self.delete_slice(&slice.name.clone());
        if let Some(service) = slice.owner() {
            self.by_service.entry(service.clone()).or_default().insert(slice.name.name.clone());
            dirty.insert(Unit::Service(service));
        }
        self.slices.insert(slice.name.clone(), slice);
        dirty
    }

    /// A slice was deleted.
    pub fn delete_slice(&mut self, name: &NamespacedName) -> BTreeSet<Unit> {
        let Some(service) = self.slices.remove(name).as_ref().and_then(EndpointSlice::owner) else {
            return BTreeSet::new();
        };
        if let Some(slices) = self.by_service.get_mut(&service) {
            slices.remove(&name.name);
            if slices.is_empty() {
                self.by_service.remove(&service);
            }
        }
        BTreeSet::from([Unit::Service(service)])
    }

    /// A node came, went, or got other addresses or a gateway: the services with load balancers of single nodes.
    pub fn nodes_changed(&self) -> BTreeSet<Unit> {
        self.services
            .values()
            .filter(|service| needs_nodes(service, &self.endpoints(&service.name), &self.cluster_subnets))
            .map(|service| Unit::Service(service.name.clone()))
            .collect()
    }

    /// A service by name.
    pub fn get(&self, name: &NamespacedName) -> Option<&Service> {
        self.services.get(name)
    }

    /// Names of all services.
    pub fn names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.keys()
    }

    /// Names of all slices.
    pub fn slice_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.slices.keys()
    }

    /// Endpoints of a service from all its slices; each address and port once, in its best condition.
    pub fn endpoints(&self, service: &NamespacedName) -> Vec<Endpoint> {
        let slices = self.by_service.get(service).into_iter().flatten();
        let slices = slices.map(|name| NamespacedName::new(&service.namespace, name));
        service::merge(slices.filter_map(|name| self.slices.get(&name)))
    }
}

/// True when some of the service's load balancers belong to single nodes: node ports, Local policies, endpoints on a host, or
/// endpoints meant for some of the nodes.
fn needs_nodes(service: &Service, endpoints: &[Endpoint], cluster_subnets: &[IpNet]) -> bool {
    service.is_balanced()
        && (service.internal_local
            || (service.external_local && !service.external_ips.is_empty())
            || !service.source_ranges.is_empty()
            || service.ports.iter().any(|port| port.node_port.is_some())
            || endpoints.iter().any(|e| e.on_host(cluster_subnets) || e.hints != Hints::default()))
}

#[cfg(test)]
mod tests {
    use api::Protocol;
    use api::service::{Condition, EndpointPort, ServicePort, SliceEndpoint};

    use super::*;

    fn slice(name: &str, service: Option<&str>, address: &str, condition: Condition) -> EndpointSlice {
        EndpointSlice {
            name: NamespacedName::new("n", name),
            service: service.map(str::to_owned),
            ports: vec![EndpointPort { name: String::new(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints: vec![SliceEndpoint {
                address: address.parse().unwrap(),
                node: None,
                condition,
                hints: Hints::default(),
            }],
        }
    }

    fn service(name: &str) -> Service {
        Service {
            name: NamespacedName::new("n", name),
            created: 0,
            cluster_ips: vec!["10.96.0.9".parse().unwrap()],
            external_ips: Vec::new(),
            ingress_ips: Vec::new(),
            source_ranges: Vec::new(),
            unreadable_ranges: false,
            ports: vec![ServicePort {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            }],
            external_local: false,
            internal_local: false,
            affinity: None,
            health_check_port: None,
        }
    }

    fn unit(name: &str) -> BTreeSet<Unit> {
        BTreeSet::from([Unit::Service(NamespacedName::new("n", name))])
    }

    fn store() -> ServiceStore {
        ServiceStore::new(vec!["10.244.0.0/16".parse().unwrap()])
    }

    #[test]
    fn a_change_makes_its_service_dirty_and_no_change_makes_nothing_dirty() {
        let mut store = store();
        assert_eq!(store.apply(service("a")), unit("a"));
        assert!(store.apply(service("a")).is_empty());
        assert_eq!(store.delete(&NamespacedName::new("n", "a")), unit("a"));
        assert!(store.delete(&NamespacedName::new("n", "a")).is_empty());
    }

    #[test]
    fn a_slice_that_moves_makes_both_services_dirty() {
        let mut store = store();
        assert_eq!(store.apply_slice(slice("s", Some("a"), "10.244.0.3", Condition::Ready)), unit("a"));
        let moved = store.apply_slice(slice("s", Some("b"), "10.244.0.3", Condition::Ready));
        assert_eq!(moved, unit("a").union(&unit("b")).cloned().collect());
        assert!(store.endpoints(&NamespacedName::new("n", "a")).is_empty());
        assert_eq!(store.apply_slice(slice("s", None, "10.244.0.3", Condition::Ready)), unit("b"));
        assert!(store.by_service.is_empty());
    }

    #[test]
    fn endpoints_of_a_service_are_those_of_all_its_slices() {
        let mut store = store();
        store.apply_slice(slice("s1", Some("a"), "10.244.0.3", Condition::NotReady));
        store.apply_slice(slice("s2", Some("a"), "10.244.0.3", Condition::Ready));
        store.apply_slice(slice("s3", Some("b"), "10.244.0.4", Condition::Ready));
        let endpoints = store.endpoints(&NamespacedName::new("n", "a"));
        let seen: Vec<_> = endpoints.iter().map(|e| (e.address.to_string(), e.condition)).collect();
        assert_eq!(seen, [("10.244.0.3".into(), Condition::Ready)]);
    }

    fn claiming(name: &str, created: i64, ips: &[&str]) -> Service {
        let external_ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Service { created, external_ips, ..service(name) }
    }

    fn served(store: &ServiceStore, name: &str) -> usize {
        store.served(&NamespacedName::new("n", name)).unwrap().external_ips.len()
    }

    #[test]
    fn addresses_of_the_cluster_and_of_nodes_are_nobodys_to_claim() {
        let mut store = store().with_own_ranges(vec!["10.96.0.0/12".parse().unwrap()]);
        let node = BTreeSet::from(["172.18.0.2".parse().unwrap()]);
        store.node_addresses(&BTreeSet::new(), &node);
        store.apply(claiming("a", 1, &["10.96.0.10", "172.18.0.2", "192.0.2.1"]));
        let refused = store.refused(&NamespacedName::new("n", "a"));
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!(served(&store, "a"), 1);
        assert_eq!(store.node_addresses(&node, &BTreeSet::new()), unit("a"), "the node is gone");
        assert_eq!(served(&store, "a"), 2);
    }

    #[test]
    fn of_two_services_the_older_has_an_address_and_port_and_the_other_gets_it_after_it() {
        let mut store = store();
        store.apply(claiming("young", 2, &["192.0.2.1"]));
        assert_eq!(served(&store, "young"), 1);
        let both: BTreeSet<Unit> = ["old", "young"].into_iter().flat_map(unit).collect();
        assert_eq!(store.apply(claiming("old", 1, &["192.0.2.1"])), both);
        assert_eq!((served(&store, "young"), served(&store, "old")), (0, 1));
        // Another service may have another port of the address.
        let mut other = claiming("other", 3, &["192.0.2.1"]);
        other.ports[0].port = 81;
        store.apply(other);
        assert_eq!(served(&store, "other"), 1);
        assert_eq!(store.delete(&NamespacedName::new("n", "old")), both);
        assert_eq!(served(&store, "young"), 1);
    }

    #[test]
    fn a_node_makes_only_services_dirty_that_have_load_balancers_of_nodes() {
        let mut store = store();
        store.apply(service("plain"));
        store.apply(Service { internal_local: true, ..service("local") });
        store.apply(service("host"));
        store.apply_slice(slice("s", Some("host"), "172.18.0.2", Condition::Ready));
        let mut node_port = service("nodeport");
        node_port.ports[0].node_port = Some(30080);
        store.apply(node_port);
        store.apply(service("hinted"));
        let mut hinted = slice("h", Some("hinted"), "10.244.0.3", Condition::Ready);
        hinted.endpoints[0].hints.zones.insert("z1".to_owned());
        store.apply_slice(hinted);
        let expected: BTreeSet<Unit> =
            ["local", "host", "nodeport", "hinted"].into_iter().flat_map(unit).collect();
        assert_eq!(store.nodes_changed(), expected);
    }
}
