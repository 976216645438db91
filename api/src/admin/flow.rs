//! Cached flows.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::FlowSpec;

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
