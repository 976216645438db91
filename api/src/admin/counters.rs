//! Packets and bytes of tunnels and pods, by path.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Packets and bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Packets; an aggregate counts as what it stands for.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
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
