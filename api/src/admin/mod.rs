//! What agent and `slipctl` say to each other on the admin socket: HTTP/1.1, JSON bodies, member names in camel case.
//!
//! Members are only ever added. A reader ignores those it does not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod audit;
mod counters;
mod flow;
mod flow_spec;
mod path;

pub use audit::{AuditReply, AuditRequest, Audited, Outcome, Verdict};
pub use counters::{Amount, ByPath, Counters, EndpointCounters, TunnelCounters, share};
pub use flow::{Action, DEFAULT_FLOWS, Flow, FlowsRequest, TunnelEnd};
pub use flow_spec::{FlowSpec, Protocol};
pub use path::{
    Cache, EndpointStatus, GateStatus, NodePath, Path, Reasoned, Sight, Status as CacheStatus, UnderlayStatus,
};

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/slipstream/admin.sock";

/// `GET`: [`Status`].
pub const STATUS: &str = "/v1/status";
/// `GET`, or `POST` with [`FlowsRequest`]: a list of [`Flow`].
pub const FLOWS: &str = "/v1/flows";
/// `GET`: [`Counters`].
pub const COUNTERS: &str = "/v1/counters";
/// `POST` with [`PathRequest`]: [`Reasoned`].
pub const PATH_NODE: &str = "/v1/path/node";
/// `POST` with [`AuditRequest`]: [`AuditReply`].
pub const AUDIT: &str = "/v1/audit";

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong, which value, and what would be right.
    pub error: String,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of the Node object.
    pub node: String,
    /// What the node's packets take now, and why.
    #[serde(flatten)]
    pub path: Reasoned,
    /// `direct` or `interposed`.
    pub attach: String,
    /// `netdev` (userspace) or `system` (kernel).
    pub ovs_datapath: String,
    /// Whether pods can be plugged in.
    pub ready: bool,
    /// What keeps it from being ready.
    pub problems: Vec<String>,
    /// What does not keep the node from being ready, and needs attention.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Every condition of the node: `met`, or why it is not.
    #[serde(default)]
    pub conditions: BTreeMap<String, String>,
    /// MTU of pod interfaces, in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// The flow cache; none without eBPF programs.
    pub cache: Option<Cache>,
    /// Versions.
    pub versions: Versions,
    /// The pods here, by name.
    pub endpoints: Vec<Endpoint>,
    /// How full the maps are, as of some seconds ago.
    pub maps: Vec<MapUse>,
    /// Why packets were counted apart, and how often; those that were never counted are left out.
    pub packet_reasons: BTreeMap<String, u64>,
}

/// Versions of what works together on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// The agent.
    pub agent: String,
    /// Fingerprint of the eBPF object; none when the agent was built without one.
    pub programs: Option<String>,
    /// Layout of the maps.
    pub map_layout: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Open vSwitch, as its database says.
    pub ovs: Option<String>,
}

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Container (sandbox) id.
    pub id: String,
    /// `NAMESPACE/NAME`, where known.
    pub pod: Option<String>,
    /// Its addresses with prefix length.
    pub addresses: Vec<String>,
    /// Its path, and why.
    #[serde(flatten)]
    pub path: Reasoned,
}

/// How full a map is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MapUse {
    /// Its name.
    pub map: String,
    /// Entries now.
    pub entries: u64,
    /// Entries it can hold.
    pub capacity: u64,
}

/// Which path the node shall take from now on. The answer is a [`Reasoned`]: the path it takes, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathRequest {
    /// `auto`, `ebpf` or `ovs`.
    pub path: NodePath,
}
