//! Protocol of the admin socket between node agent and `slipctl`: HTTP/1.1 with JSON bodies, member names in camel case.
//!
//! New versions only add members; readers ignore unknown members.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod audit;
mod counters;
mod flow;
mod flow_spec;
mod log_level;
mod path;
mod service_path;
mod services;

pub use audit::{AuditReply, AuditRequest, Audited, Outcome, Verdict};
pub use counters::{Amount, ByPath, Counters, EndpointCounters, InterfaceCounters, TunnelCounters, share};
pub use flow::{Action, DEFAULT_FLOWS, Flow, FlowsRequest, Translated, TunnelEnd};
pub use flow_spec::{CachedProtocol, FlowSpec};
pub use log_level::{LogLevel, LogLevelRequest};
pub use path::{
    Cache, EndpointStatus, GateStatus, MonitorHealth, NodePath, Path, PathStatus, Status as CacheStatus,
    UnderlayStatus,
};
pub use service_path::{
    BackendTotals, PathTotals, ServicePath, ServicePathRequest, ServiceTotals, ServiceTotalsRequest,
};
pub use services::{BackendTraffic, ServiceTraffic, service_port};

/// Default path of the admin socket (`--admin-socket`).
pub const DEFAULT_SOCKET: &str = "/run/slipstream/admin.sock";

/// `GET` returns [`Status`].
pub const STATUS: &str = "/v1/status";
/// `GET`, or `POST` with [`FlowsRequest`], returns a list of [`Flow`].
pub const FLOWS: &str = "/v1/flows";
/// `GET` returns a list of [`ServiceTraffic`].
pub const SERVICES: &str = "/v1/services";
/// `GET` returns [`Counters`].
pub const COUNTERS: &str = "/v1/counters";
/// `POST` with [`PathRequest`] returns [`PathStatus`].
pub const PATH_NODE: &str = "/v1/path/node";
/// `GET` returns a list of [`ServicePath`]: the services whose path was asked for. `POST` with [`ServicePathRequest`] returns one.
pub const PATH_SERVICE: &str = "/v1/path/service";
/// `POST` with [`ServiceTotalsRequest`] returns [`ServiceTotals`].
pub const SERVICE_TOTALS: &str = "/v1/services/totals";
/// `POST` with [`AuditRequest`] returns [`AuditReply`].
pub const AUDIT: &str = "/v1/audit";
/// `POST` with [`LogLevelRequest`] returns [`LogLevel`].
pub const LOG_LEVEL: &str = "/v1/log-level";

/// Body of every error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The error: which value is wrong and what would be right.
    pub error: String,
}

/// Status of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of the Node object.
    pub node: String,
    /// Path of the node and the reason for it.
    #[serde(flatten)]
    pub path: PathStatus,
    /// `direct` or `interposed`.
    pub attach: String,
    /// `netdev` (userspace) or `system` (kernel).
    pub ovs_datapath: String,
    /// Whether the XDP program is attached to the uplink: `off`, `attached …`, or `not attached: REASON`.
    #[serde(default)]
    pub xdp: String,
    /// Whether all conditions are met, so that pods can be added.
    pub ready: bool,
    /// Conditions that are not met, as `CONDITION: REASON`.
    pub problems: Vec<String>,
    /// Active warnings, as `WHAT: REASON`; they do not affect readiness.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Every condition of the node: `met`, or why it is not.
    #[serde(default)]
    pub conditions: BTreeMap<String, String>,
    /// MTU of pod interfaces, in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// State of the flow cache; `None` without eBPF programs.
    pub cache: Option<Cache>,
    /// Versions of agent, programs, kernel and OVS.
    pub versions: Versions,
    /// Pods of this node, sorted by name.
    pub endpoints: Vec<Endpoint>,
    /// Fill level of the eBPF maps, up to 5 s old.
    pub maps: Vec<MapUse>,
    /// Packets by `ebpf::Reason`; reasons with a count of 0 are omitted.
    pub packet_reasons: BTreeMap<String, u64>,
}

/// Versions of the node's components.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// Version of the agent.
    pub agent: String,
    /// Fingerprint of the eBPF object; `None` when the agent was built without an eBPF toolchain.
    pub programs: Option<String>,
    /// Version of the layout of the eBPF maps.
    pub map_layout: u32,
    /// Kernel release (`uname -r`).
    pub kernel: String,
    /// Version of Open vSwitch (`ovs_version` of its database).
    pub ovs: Option<String>,
}

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Id of the interface: the container (sandbox) id, of further interfaces one with the container id at its end.
    pub id: String,
    /// `NAMESPACE/NAME`, where known.
    pub pod: Option<String>,
    /// Pod addresses with prefix length.
    pub addresses: Vec<String>,
    /// Path of the pod and the reason for it.
    #[serde(flatten)]
    pub path: PathStatus,
}

/// Fill level of an eBPF map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MapUse {
    /// Name of the map.
    pub map: String,
    /// Number of entries.
    pub entries: u64,
    /// Maximum number of entries.
    pub capacity: u64,
}

/// Request to change the path of the node. The response is a [`PathStatus`]: the path now in use and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathRequest {
    /// `auto`, `ebpf` or `ovs`.
    pub path: NodePath,
}
