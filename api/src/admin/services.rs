//! Traffic of services on the flow cache.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Amount, CachedProtocol, Path};

/// One address of a service port, with the backends to which the flow cache carries its connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTraffic {
    /// `NAMESPACE/NAME`.
    pub service: String,
    /// Name of the port; empty if the service's only port has none.
    pub port: String,
    /// Protocol.
    pub protocol: CachedProtocol,
    /// Address and port, or `node port N`.
    pub address: String,
    /// The path of the entries that this is about. With `ovs` they carry nothing, and count what OVS carries: the service is kept off
    /// the cache.
    #[serde(default = "by_the_cache")]
    pub path: Path,
    /// Backends, by address.
    pub backends: Vec<BackendTraffic>,
}

/// The path that an agent means that does not name it.
fn by_the_cache() -> Path {
    Path::Ebpf
}

/// A service port as people read it: `NAMESPACE/NAME:PORT`, without the colon if the port has no name.
pub fn service_port(service: &str, port: &str) -> String {
    if port.is_empty() { service.to_owned() } else { format!("{service}:{port}") }
}

/// A backend of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTraffic {
    /// Address and port of the backend.
    pub address: SocketAddr,
    /// `NAMESPACE/NAME` of the pod, if it is on this node.
    pub pod: Option<String>,
    /// Connections with an entry in use, or with one that keeps them off the cache.
    pub connections: u64,
    /// Packets from clients that the entries in the cache carried.
    pub to_backend: Amount,
    /// Packets to clients.
    pub from_backend: Amount,
}
