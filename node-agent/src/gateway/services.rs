//! Index of Services and EndpointSlices with the data that this node needs: node ports, external addresses, services with traffic
//! policy Local, and backends on this node. Everything else is dropped on arrival.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use api::Protocol;
use api::addr::Family;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Label of services and slices that another proxy serves.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of headless services and their slices.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Number of other nodes with backends kept per slice, for this node's own connections.
const ELSEWHERE: usize = 8;

/// Label of an EndpointSlice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

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
    /// `namespace/name`.
    pub key: String,
    /// The cluster addresses, one for each family that the service has.
    pub cluster_ips: Vec<IpAddr>,
    /// External addresses and those of the load balancer, of the service's families, sorted.
    pub external_ips: Vec<IpAddr>,
    /// External traffic only to backends on this node, with the client's address kept.
    pub external_local: bool,
    /// Traffic from inside only to backends on this node.
    pub internal_local: bool,
    /// A client stays with its backend.
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
}

impl NodeServicePort {
    /// The backends on this node of a family.
    pub fn local_of(&self, family: Family) -> impl Iterator<Item = (IpAddr, u16)> {
        self.local.iter().copied().filter(move |(ip, _)| Family::of(*ip) == family)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    external_local: bool,
    internal_local: bool,
    sticky: bool,
    health_check_port: Option<u16>,
    ports: Vec<KeptPort>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptPort {
    name: String,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct KeptSlice {
    service: String,
    /// Ready addresses on this node.
    ready: BTreeSet<IpAddr>,
    /// Addresses on this node that serve while they terminate.
    leaving: BTreeSet<IpAddr>,
    /// Other nodes with either.
    elsewhere: BTreeSet<String>,
    /// Port name to port.
    ports: BTreeMap<String, u16>,
}

/// The node's view of all services, fed by watches.
#[derive(Debug)]
pub struct ServiceIndex {
    node: String,
    services: BTreeMap<String, Kept>,
    /// By `namespace/name` of the slice.
    slices: HashMap<String, KeptSlice>,
}

impl ServiceIndex {
    /// An empty index for the node of this name.
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), services: BTreeMap::new(), slices: HashMap::new() }
    }

    /// Takes in a service. True when something this node cares about has changed.
    pub fn apply_service(&mut self, service: &Service) -> bool {
        let key = key(service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        match keep_service(service) {
            Some(kept) => match self.services.get(&key) {
                Some(old) if *old == kept => false,
                _ => {
                    self.services.insert(key, kept);
                    true
                }
            },
            None => self.services.remove(&key).is_some(),
        }
    }

    /// Forgets a service. True when this node cared about it.
    pub fn delete_service(&mut self, service: &Service) -> bool {
        let key = key(service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        self.services.remove(&key).is_some()
    }

    /// Takes in a slice. True when the backends on this node have changed.
    pub fn apply_slice(&mut self, slice: &EndpointSlice) -> bool {
        let key = key(slice.metadata.namespace.as_deref(), slice.metadata.name.as_deref());
        let new = keep_slice(slice, &self.node);
        let old = match &new {
            Some(kept) => self.slices.insert(key, kept.clone()),
            None => self.slices.remove(&key),
        };
        self.matters(old.as_ref(), new.as_ref())
    }

    /// Whether a slice's change is one for this node: its own backends, and others where the service must find one elsewhere.
    fn matters(&self, old: Option<&KeptSlice>, new: Option<&KeptSlice>) -> bool {
        let local = |slice: Option<&KeptSlice>| {
            let here = slice.filter(|slice| !slice.ready.is_empty() || !slice.leaving.is_empty())?;
            Some((here.service.clone(), here.ready.clone(), here.leaving.clone(), here.ports.clone()))
        };
        let looks_elsewhere = |slice: &KeptSlice| {
            self.services.get(&slice.service).is_some_and(|service| service.external_local)
        };
        let remote = |slice: Option<&KeptSlice>| {
            slice.filter(|slice| looks_elsewhere(slice)).map(|slice| slice.elsewhere.clone())
        };
        local(old) != local(new) || remote(old) != remote(new)
    }

    /// Forgets a slice. True when it had backends on this node.
    pub fn delete_slice(&mut self, slice: &EndpointSlice) -> bool {
        let key = key(slice.metadata.namespace.as_deref(), slice.metadata.name.as_deref());
        let old = self.slices.remove(&key);
        self.matters(old.as_ref(), None)
    }

    /// Drops services that are not among `alive` (after a watch was restarted).
    pub fn retain_services(&mut self, alive: &BTreeSet<String>) {
        self.services.retain(|key, _| alive.contains(key));
    }

    /// Drops slices that are not among `alive` (after a watch was restarted).
    pub fn retain_slices(&mut self, alive: &BTreeSet<String>) {
        self.slices.retain(|key, _| alive.contains(key));
    }

    /// The services that need something here, in the order of their names.
    pub fn services(&self) -> Vec<NodeService> {
        let mut by_service: HashMap<&str, Vec<&KeptSlice>> = HashMap::new();
        for slice in self.slices.values() {
            by_service.entry(&slice.service).or_default().push(slice);
        }
        let none = Vec::new();
        self.services
            .iter()
            .map(|(key, kept)| view(key, kept, by_service.get(key.as_str()).unwrap_or(&none)))
            .collect()
    }
}

/// `namespace/name`.
pub fn key(namespace: Option<&str>, name: Option<&str>) -> String {
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

fn view(key: &str, kept: &Kept, slices: &[&KeptSlice]) -> NodeService {
    let ports = kept.ports.iter().map(|port| {
        let of_port = || slices.iter().filter_map(|slice| Some((slice, *slice.ports.get(&port.name)?)));
        let backends = |addresses: fn(&KeptSlice) -> &BTreeSet<IpAddr>| -> BTreeSet<(IpAddr, u16)> {
            of_port()
                .flat_map(|(slice, target)| addresses(slice).iter().map(move |ip| (*ip, target)))
                .collect()
        };
        let mut local = backends(|slice| &slice.ready);
        // Each family is judged by itself.
        for (ip, target) in backends(|slice| &slice.leaving) {
            let family = |other: &(IpAddr, u16)| other.0.is_ipv4() == ip.is_ipv4();
            if !backends(|slice| &slice.ready).iter().any(family) {
                local.insert((ip, target));
            }
        }
        NodeServicePort {
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port,
            local: local.into_iter().collect(),
            elsewhere: of_port().flat_map(|(slice, _)| &slice.elsewhere).take(ELSEWHERE).cloned().collect(),
        }
    });
    let backends: BTreeSet<IpAddr> = slices.iter().flat_map(|slice| &slice.ready).copied().collect();
    let ipv4 = backends.iter().filter(|ip| ip.is_ipv4()).count();
    NodeService {
        key: key.to_owned(),
        cluster_ips: kept.cluster_ips.clone(),
        external_ips: kept.external_ips.clone(),
        external_local: kept.external_local,
        internal_local: kept.internal_local,
        sticky: kept.sticky,
        health_check_port: kept.health_check_port,
        ports: ports.collect(),
        local_backends: ipv4.max(backends.len() - ipv4),
    }
}

/// Data to keep of a service; `None` when OVN's load balancers serve it completely.
fn keep_service(service: &Service) -> Option<Kept> {
    let labels = service.metadata.labels.as_ref();
    if labels.is_some_and(|l| l.contains_key(PROXY_NAME) || l.contains_key(HEADLESS)) {
        return None;
    }
    let spec = service.spec.as_ref()?;
    let mut cluster_ips: Vec<IpAddr> = Vec::new();
    for text in spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip) {
        // Headless services say `None`.
        if let Ok(ip) = text.parse()
            && !cluster_ips.contains(&ip)
        {
            cluster_ips.push(ip);
        }
    }
    if cluster_ips.is_empty() {
        return None;
    }
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    let has_node_ports = matches!(kind, "NodePort" | "LoadBalancer");
    let ingress = service
        .status
        .iter()
        .filter_map(|s| s.load_balancer.as_ref())
        .flat_map(|lb| lb.ingress.iter().flatten())
        .filter(|i| i.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|i| i.ip.as_deref());
    let external: BTreeSet<IpAddr> = spec
        .external_ips
        .iter()
        .flatten()
        .map(String::as_str)
        .chain(ingress.filter(|_| kind == "LoadBalancer"))
        .filter_map(|ip| ip.parse().ok())
        .filter(|ip| cluster_ips.iter().any(|own| Family::of(*own) == Family::of(*ip)))
        .collect();
    let ports: Vec<KeptPort> = spec
        .ports
        .iter()
        .flatten()
        .filter_map(|port| {
            Some(KeptPort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::parse(port.protocol.as_deref())?,
                port: u16::try_from(port.port).ok()?,
                node_port: port
                    .node_port
                    .filter(|_| has_node_ports)
                    .and_then(|p| u16::try_from(p).ok())
                    .filter(|p| *p != 0),
            })
        })
        .collect();
    // As kube-proxy: wherever the outside has an address or a port.
    let has_external = has_node_ports || spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    let external_local = has_external && spec.external_traffic_policy.as_deref() == Some("Local");
    let internal_local = spec.internal_traffic_policy.as_deref() == Some("Local");
    let needed = internal_local || !external.is_empty() || ports.iter().any(|p| p.node_port.is_some());
    needed.then(|| Kept {
        cluster_ips,
        external_ips: external.into_iter().collect(),
        external_local,
        internal_local,
        sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
        health_check_port: spec
            .health_check_node_port
            .filter(|_| external_local && kind == "LoadBalancer")
            .and_then(|p| u16::try_from(p).ok())
            .filter(|p| *p != 0),
        ports,
    })
}

/// Data to keep of a slice; `None` when it has no backend.
fn keep_slice(slice: &EndpointSlice, node: &str) -> Option<KeptSlice> {
    let labels = slice.metadata.labels.as_ref()?;
    if labels.contains_key(PROXY_NAME) || labels.contains_key(HEADLESS) {
        return None;
    }
    let service = labels.get(SERVICE_NAME)?;
    let mut kept = KeptSlice {
        service: key(slice.metadata.namespace.as_deref(), Some(service)),
        ports: slice
            .ports
            .iter()
            .flatten()
            .filter_map(|p| Some((p.name.clone().unwrap_or_default(), u16::try_from(p.port?).ok()?)))
            .collect(),
        ..KeptSlice::default()
    };
    for endpoint in &slice.endpoints {
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
        let serving = conditions.and_then(|c| c.serving).unwrap_or(ready);
        let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
        let usable = ready || (serving && terminating);
        if !usable {
            continue;
        }
        match endpoint.node_name.as_deref() {
            Some(name) if name == node => {
                let into = if ready { &mut kept.ready } else { &mut kept.leaving };
                // Only the first address of an endpoint is to be used (EndpointSlice API).
                into.extend(endpoint.addresses.first().and_then(|ip| ip.parse::<IpAddr>().ok()));
            }
            Some(name) => {
                kept.elsewhere.insert(name.to_owned());
            }
            None => {}
        }
    }
    while kept.elsewhere.len() > ELSEWHERE {
        kept.elsewhere.pop_last();
    }
    let empty = kept.ready.is_empty() && kept.leaving.is_empty() && kept.elsewhere.is_empty();
    (!empty).then_some(kept)
}

#[cfg(test)]
#[path = "fixture.rs"]
pub(crate) mod fixture;
