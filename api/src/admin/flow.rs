//! Entries of the flow cache as the admin socket shows them.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::FlowSpec;

/// Selects the flows to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FlowsRequest {
    /// Container id or a prefix of one, or `NAMESPACE/POD`; `None`: all pods.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Maximum number of flows; `None`: [`DEFAULT_FLOWS`].
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Default maximum number of flows in a response.
pub const DEFAULT_FLOWS: usize = 100;

/// A cached flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Container id of the sending pod, or of the receiving pod for [`Action::Deliver`].
    pub endpoint: String,
    /// `NAMESPACE/NAME` of that pod, where known.
    pub pod: Option<String>,
    /// Protocol, addresses and ports of the packets.
    #[serde(flatten)]
    pub flow: FlowSpec,
    /// Addresses and ports after OVS, if it translates them (NAT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated: Option<Translated>,
    /// The service port it asks or answers for, `NAMESPACE/NAME:PORT`, if OVS translates a service's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Cached action.
    pub action: Action,
    /// Amount by which the TTL or hop limit is decremented.
    pub ttl_step: u8,
    /// Epoch in which the entry was learned.
    pub epoch: u32,
    /// The entry is current (of this epoch, and nothing that concerns it has changed since) and in use.
    pub valid: bool,
    /// The entry is current but not used yet: the other direction of the TCP connection is not cached.
    pub waiting: bool,
    /// The entry would be valid, but a revalidation found a divergence for this pod in this epoch, so the pod takes the slow path.
    pub diverged: bool,
    /// The service is kept off the cache (`slipctl path service`): the entry carries nothing, and counts what OVS carries.
    #[serde(default)]
    pub slow: bool,
    /// Any change of OVS's tables ends the entry, as it cannot be told which ones concern it.
    #[serde(default)]
    pub sensitive: bool,
    /// A revalidation packet is inside OVS.
    pub probing: bool,
    /// Milliseconds since the entry was learned.
    pub age_ms: u64,
    /// Milliseconds until the next revalidation; negative when it is due.
    pub refresh_in_ms: i64,
    /// Packets that used the entry.
    pub packets: u64,
    /// Bytes of them on the wire, without a tunnel's headers.
    #[serde(default)]
    pub bytes: u64,
}

/// Addresses and ports of a packet after OVS has translated them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Translated {
    /// Source.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
}

/// Action of a cached flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Action {
    /// Encapsulate and send to another node.
    Tunnel(TunnelEnd),
    /// Forward to a pod of this node.
    Local {
        /// Container id of the receiving pod.
        to: String,
        /// `NAMESPACE/NAME` of the receiving pod, where known.
        pod: Option<String>,
    },
    /// Decapsulate a packet of another node and deliver it to the pod.
    Deliver(TunnelEnd),
}

/// Remote end of a tunnel with the Geneve metadata of the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelEnd {
    /// Tunnel endpoint of the remote node.
    pub remote: IpAddr,
    /// Name of the remote node, where known.
    pub node: Option<String>,
    /// Virtual network identifier.
    pub vni: u32,
    /// OVN's Geneve option: ingress port key (15 bits) and egress port key (16 bits) (ovn-architecture(7), "Tunnel Encapsulations").
    pub option: u32,
}
