//! What agent and `slipctl` say to each other on the admin socket: HTTP/1.1, JSON bodies, member names in camel case.
//!
//! Members are only ever added. A reader ignores those it does not know.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::flow_spec::FlowSpec;
use crate::fast_path::Amount;
use crate::fastpath::status::{Cache, NodePath, Reasoned};

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

/// Which flows are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FlowsRequest {
    /// A container id or the beginning of one, or `NAMESPACE/POD`; without it all.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// At most so many; without it [`DEFAULT_FLOWS`].
    #[serde(default)]
    pub limit: Option<usize>,
}

/// How many flows are shown unless told otherwise.
pub const DEFAULT_FLOWS: usize = 100;

/// A cached flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// The container it belongs to: the sender, of a flow from another node the receiver.
    pub endpoint: String,
    /// `NAMESPACE/NAME` of that container's pod.
    pub pod: Option<String>,
    /// The flow as the packets show it.
    #[serde(flatten)]
    pub flow: FlowSpec,
    /// What is done with the packets.
    pub action: Action,
    /// How much the TTL or hop limit is lowered.
    pub ttl_step: u8,
    /// Epoch in which it was learned.
    pub epoch: u32,
    /// Packets may use it.
    pub valid: bool,
    /// It is of the node's epoch, but packets may not use it yet: of a TCP connection the other direction is missing.
    pub waiting: bool,
    /// It would be valid, but OVS answered otherwise than remembered for this pod in this epoch, and nothing of the pod's is used.
    pub diverged: bool,
    /// A refresh packet is inside OVS.
    pub probing: bool,
    /// Milliseconds since it was learned.
    pub age_ms: u64,
    /// Milliseconds until the refresh; negative when it is due.
    pub refresh_in_ms: i64,
    /// Packets that used it.
    pub packets: u64,
}

/// Where a flow goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Action {
    /// To another node.
    Tunnel(TunnelEnd),
    /// To a pod of this node.
    Local {
        /// Its container.
        to: String,
        /// `NAMESPACE/NAME`.
        pod: Option<String>,
    },
    /// From another node to the pod.
    Deliver(TunnelEnd),
}

/// The other side of a tunnel, with what the packets say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelEnd {
    /// Address of the other node.
    pub remote: IpAddr,
    /// Its name, where known.
    pub node: Option<String>,
    /// Virtual network identifier.
    pub vni: u32,
    /// OVN's option: ingress port key (15 bits) and egress port key (16 bits).
    pub option: u32,
}

/// What was counted so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Milliseconds on a clock that never jumps, for rates.
    pub at_ms: u64,
    /// By remote node and VNI.
    pub tunnels: Vec<TunnelCounters>,
    /// By pod.
    pub endpoints: Vec<EndpointCounters>,
}

/// One tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelCounters {
    /// Address of the other node.
    pub remote: IpAddr,
    /// Its name, where known.
    pub node: Option<String>,
    /// Virtual network identifier.
    pub vni: u32,
    /// Received.
    #[serde(rename = "in")]
    pub received: ByPath,
    /// Sent.
    #[serde(rename = "out")]
    pub sent: ByPath,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounters {
    /// Container id.
    pub id: String,
    /// `NAMESPACE/NAME`, where known.
    pub pod: Option<String>,
    /// Delivered to the pod.
    #[serde(rename = "in")]
    pub received: ByPath,
    /// Sent by the pod.
    #[serde(rename = "out")]
    pub sent: ByPath,
}

/// Packets and bytes by path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ByPath {
    /// On the fast path.
    pub fast: Amount,
    /// Through OVS.
    pub slow: Amount,
    /// Share of the packets that were fast, 0 to 1; none when there were none.
    pub hit_ratio: Option<f64>,
}

impl ByPath {
    /// With the ratio worked out.
    pub fn new(fast: Amount, slow: Amount) -> Self {
        Self { fast, slow, hit_ratio: share(fast.packets, slow.packets) }
    }
}

/// Share of `fast` in both, 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
pub fn share(fast: u64, slow: u64) -> Option<f64> {
    let all = fast.saturating_add(slow);
    (all > 0).then(|| fast as f64 / all as f64)
}

/// Which path the node shall take from now on. The answer is a [`Reasoned`]: the path it takes, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathRequest {
    /// `auto`, `ebpf` or `ovs`.
    pub path: NodePath,
}

/// What is to be asked of OVS: one flow, or all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditRequest {
    /// This one; without it the valid ones of the cache.
    #[serde(default)]
    pub flow: Option<FlowSpec>,
    /// At most so many of them; without it [`DEFAULT_FLOWS`].
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Both answers for each flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReply {
    /// Flow by flow.
    pub flows: Vec<Audited>,
    /// How many were the same.
    pub same: usize,
    /// How many were different.
    pub different: usize,
    /// How many could not be decided.
    pub undecided: usize,
}

/// One flow with both answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audited {
    /// The pod it belongs to.
    pub pod: Option<String>,
    /// Its container.
    pub endpoint: String,
    /// The flow.
    #[serde(flatten)]
    pub flow: FlowSpec,
    /// What came of it.
    pub verdict: Verdict,
    /// Why, unless they are the same.
    pub why: Vec<String>,
    /// What the cache does; none when it has no such flow.
    pub remembered: Option<Outcome>,
    /// What OVS would do; none when it could not be asked or understood.
    pub ovs: Option<Outcome>,
    /// What OVS was asked.
    pub asked: Vec<String>,
    /// OVS's datapath actions, one line for each pass.
    pub datapath_actions: Vec<String>,
}

/// Whether both answers agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// They agree.
    Same,
    /// They do not.
    Different,
    /// It could not be found out.
    Undecided,
}

impl Verdict {
    /// `same`, `different` or `undecided`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::Undecided => "undecided",
        }
    }
}

/// What becomes of a packet. Members that are not known are none, and are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `tunnel`, `local`, `deliver`, `drop` or `other`.
    pub kind: String,
    /// Where it goes: the other node's address, or the pod's port.
    pub to: Option<String>,
    /// Virtual network identifier.
    pub vni: Option<u32>,
    /// OVN's option.
    pub option: Option<u32>,
    /// Destination MAC of the (inner) packet.
    pub destination_mac: Option<String>,
    /// Source MAC of the (inner) packet.
    pub source_mac: Option<String>,
    /// How much the TTL or hop limit is lowered.
    pub ttl_step: Option<u8>,
}
