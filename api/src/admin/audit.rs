//! Audit: compares the action cached for a flow with what OVS would do now (`ofproto/trace`).

use serde::{Deserialize, Serialize};

use super::FlowSpec;

/// Request to audit one flow or all valid flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditRequest {
    /// Flow to audit; `None`: all valid flows of the cache.
    #[serde(default)]
    pub flow: Option<FlowSpec>,
    /// Maximum number of flows; `None`: [`DEFAULT_FLOWS`](super::DEFAULT_FLOWS).
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Result of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReply {
    /// Result for each flow.
    pub flows: Vec<Audited>,
    /// Number of flows for which cache and OVS agree.
    pub same: usize,
    /// Number of flows for which cache and OVS differ.
    pub different: usize,
    /// Number of flows that could not be compared.
    pub undecided: usize,
}

/// Result of the audit of one flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audited {
    /// `NAMESPACE/NAME` of the pod that owns the flow, where known.
    pub pod: Option<String>,
    /// Container id of the pod that owns the flow.
    pub endpoint: String,
    /// Protocol, addresses and ports of the flow.
    #[serde(flatten)]
    pub flow: FlowSpec,
    /// Whether cache and OVS agree.
    pub verdict: Verdict,
    /// Differences, or why the flow could not be compared; empty when they agree.
    pub why: Vec<String>,
    /// Cached action; `None` when the flow is not cached.
    pub remembered: Option<Outcome>,
    /// Action of OVS; `None` when the trace failed or could not be parsed.
    pub ovs: Option<Outcome>,
    /// Commands sent to ovs-vswitchd, and the connection tracking state assumed.
    pub asked: Vec<String>,
    /// Datapath actions of OVS, one line for each recirculation.
    pub datapath_actions: Vec<String>,
}

/// Whether cache and OVS agree on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Cache and OVS agree.
    Same,
    /// Cache and OVS differ.
    Different,
    /// The flow could not be compared.
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

/// What happens to a packet. Unknown members are `None` and are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `tunnel`, `local`, `deliver`, `drop` or `other`.
    pub kind: String,
    /// Destination: address of the remote node, or name of the pod.
    pub to: Option<String>,
    /// Virtual network identifier.
    pub vni: Option<u32>,
    /// Value of OVN's Geneve option.
    pub option: Option<u32>,
    /// Destination MAC of the packet, in a tunnel of the inner packet.
    pub destination_mac: Option<String>,
    /// Source MAC of the packet, in a tunnel of the inner packet.
    pub source_mac: Option<String>,
    /// Amount by which the TTL or hop limit is decremented.
    pub ttl_step: Option<u8>,
}
