//! The audit: what the flow cache does with a flow, beside what OVS would do.

use serde::{Deserialize, Serialize};

use super::FlowSpec;

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
