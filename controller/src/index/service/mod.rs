//! Services and their endpoint slices: plain structs, how they are read, and which services a change makes dirty.

mod claims;
mod convert;
mod store;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::index::Protocol;
use api::NamespacedName;

pub use claims::Refusal;
pub use store::ServiceStore;

/// A service as far as load balancing needs it. Services that nobody balances (headless, `ExternalName`, left to another
/// proxy by label, without an address yet) have no cluster addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub name: NamespacedName,
    /// Creation time, seconds since the epoch.
    pub created: i64,
    pub cluster_ips: Vec<IpAddr>,
    /// `externalIPs`, then the load balancer's addresses.
    pub external_ips: Vec<IpAddr>,
    /// The load balancer's addresses alone.
    pub ingress_ips: Vec<IpAddr>,
    /// Who may come to the load balancer's addresses; everybody when there is none of the address's family.
    pub source_ranges: Vec<IpNet>,
    /// Some range cannot be read: who is in none of the others stays out, in both families.
    pub unreadable_ranges: bool,
    pub ports: Vec<ServicePort>,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// Seconds of `ClientIP` affinity.
    pub affinity: Option<u32>,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty when the service's only port has no name.
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

/// An endpoint slice. The port numbers in it are already resolved from named target ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    pub name: NamespacedName,
    /// The service it belongs to, in the same namespace.
    pub service: Option<String>,
    pub ports: Vec<EndpointPort>,
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port that every endpoint of a slice serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// The service port's name.
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

/// An address of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    pub address: IpAddr,
    pub node: Option<String>,
    pub condition: Condition,
    pub hints: Hints,
}

/// For which clients an endpoint is meant; empty sets mean no hint. Filled by the slice controller for services with
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
    /// Only where nothing is ready: serving while it terminates.
    Terminating,
    /// Always.
    Ready,
}

/// One address and port behind one service port, merged over all slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The service port's name.
    pub port_name: String,
    pub protocol: Protocol,
    pub address: IpAddr,
    pub port: u16,
    pub node: Option<String>,
    pub condition: Condition,
    pub hints: Hints,
}

impl Service {
    /// True when load balancers are to be written for the service.
    pub fn is_balanced(&self) -> bool {
        !self.cluster_ips.is_empty() && !self.ports.is_empty()
    }
}
