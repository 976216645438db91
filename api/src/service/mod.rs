//! Services and their endpoint slices, as load balancing needs them: how the objects are read, which endpoints belong to a
//! port, which of them are used, and which service may serve an external address. The controller uses it for OVN's load
//! balancers, the node agent for what OVN does not serve.

mod claims;
mod convert;
mod endpoints;
mod front;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{NamespacedName, Protocol};

pub use claims::{Claims, Refusal};
pub use endpoints::{merge, usable};
pub use front::Front;

/// Label of services, and their slices, that another proxy serves.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of services, and their slices, that have no load balancing.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of a slice that names its service.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A service, with what load balancing needs. Services without load balancing (headless, `ExternalName`, served by another
/// proxy by label, without an address yet) have no cluster addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: NamespacedName,
    /// Creation time, seconds since the epoch.
    pub created: i64,
    /// `clusterIP`, then the other `clusterIPs`.
    pub cluster_ips: Vec<IpAddr>,
    /// `externalIPs`, then the load balancer's addresses.
    pub external_ips: Vec<IpAddr>,
    /// Only the load balancer's addresses.
    pub ingress_ips: Vec<IpAddr>,
    /// Sources that may connect to the load balancer's addresses; all, if there is no range of the address's family.
    pub source_ranges: Vec<IpNet>,
    /// Some range cannot be read: sources that are in none of the others are not admitted, in both families.
    pub unreadable_ranges: bool,
    /// The ports that could be read.
    pub ports: Vec<ServicePort>,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// Seconds of `ClientIP` affinity.
    pub affinity: Option<u32>,
    /// Port on which load balancers query whether a node has endpoints (`healthCheckNodePort`).
    pub health_check_port: Option<u16>,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty when the service's only port has no name.
    pub name: String,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port on the service's addresses.
    pub port: u16,
    /// Port on every node, for types of service that have one.
    pub node_port: Option<u16>,
}

/// An endpoint slice. The port numbers in it are already resolved from named target ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: NamespacedName,
    /// The service it belongs to, in the same namespace.
    pub service: Option<String>,
    /// Ports of each of the endpoints; without any, the slice adds no endpoint to the service.
    pub ports: Vec<EndpointPort>,
    /// The addresses that could be read.
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port that every endpoint of a slice serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// The service port's name.
    pub name: String,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port number on which it listens.
    pub port: u16,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// The pod's address, or any other.
    pub address: IpAddr,
    /// Name of the node that it is on.
    pub node: Option<String>,
    /// Whether it may be used.
    pub condition: Condition,
    /// The clients for which it is meant.
    pub hints: Hints,
}

/// The clients for which an endpoint is meant; empty sets mean no hint. Set by the slice controller for services with
/// `trafficDistribution` or `topology-mode: Auto`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// `hints.forZones`.
    pub zones: BTreeSet<String>,
    /// `hints.forNodes`.
    pub nodes: BTreeSet<String>,
}

/// Whether an endpoint may be used; later is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Not at all.
    NotReady,
    /// Only if no endpoint is ready: it still serves while it terminates.
    Terminating,
    /// Always.
    Ready,
}

/// One address and port of one service port, merged over all slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The service port's name.
    pub port_name: String,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The pod's address, or any other.
    pub address: IpAddr,
    /// Port number on which it listens.
    pub port: u16,
    /// Name of the node that it is on.
    pub node: Option<String>,
    /// Whether it may be used.
    pub condition: Condition,
    /// The clients for which it is meant.
    pub hints: Hints,
}

impl Service {
    /// True when the service has load balancers.
    pub fn is_balanced(&self) -> bool {
        !self.cluster_ips.is_empty() && !self.ports.is_empty()
    }
}
