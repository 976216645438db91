//! Paths of services, and what was carried for them by each path.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Amount, CachedProtocol, Path, PathStatus};

/// Asks for the path of a service, or sets it. The response is a [`ServicePath`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePathRequest {
    /// `NAMESPACE/NAME`.
    pub service: String,
    /// The path to set; `None`: only ask.
    #[serde(default)]
    pub path: Option<Path>,
    /// Milliseconds after which the path from before comes back by itself, unless it is asked for again; 0: at once. `None`: for good,
    /// also for agents to come.
    #[serde(default)]
    pub for_ms: Option<u64>,
}

/// The path of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePath {
    /// `NAMESPACE/NAME`.
    pub service: String,
    /// What was asked for; `ebpf` if nothing was.
    pub wanted: Path,
    /// True if the requested path ends by itself after some time.
    pub temporary: bool,
    /// The path now and the reason for it.
    #[serde(flatten)]
    pub path: PathStatus,
    /// Where clients reach the service: addresses with ports and protocols, node ports with the node's addresses.
    pub addresses: Vec<String>,
}

/// Asks for the totals of a service. The response is a [`ServiceTotals`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceTotalsRequest {
    /// `NAMESPACE/NAME`.
    pub service: String,
}

/// What was carried for a service since the agent's start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTotals {
    /// Milliseconds on a clock that never jumps.
    pub at_ms: u64,
    /// The service.
    #[serde(flatten)]
    pub service: ServicePath,
    /// Backends with traffic, by port and address.
    pub backends: Vec<BackendTotals>,
}

/// What was carried for one backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTotals {
    /// Name of the port; empty if the service's only port has none.
    pub port: String,
    /// Protocol.
    pub protocol: CachedProtocol,
    /// Address and port of the backend.
    pub address: SocketAddr,
    /// By the flow cache.
    pub fast: PathTotals,
    /// By OVS, while the service was kept off the cache.
    pub slow: PathTotals,
}

/// What was carried by one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathTotals {
    /// Packets from clients.
    pub to_backend: Amount,
    /// Packets to clients.
    pub from_backend: Amount,
    /// Connections that began.
    pub connections: u64,
}
