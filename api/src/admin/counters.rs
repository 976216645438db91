//! Packet and byte counters of tunnels and pods, by path.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Packets and bytes, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Packets; a GSO or GRO aggregate counts as its segments.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A reading of all counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Time of the reading: milliseconds of a monotonic clock.
    pub at_ms: u64,
    /// Counters by remote node and VNI.
    pub tunnels: Vec<TunnelCounters>,
    /// Counters by pod.
    pub endpoints: Vec<EndpointCounters>,
    /// Counters of the uplink and of the node's own ports.
    #[serde(default)]
    pub interfaces: Vec<InterfaceCounters>,
}

/// Counters of an interface that is none of a pod, seen from the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceCounters {
    /// `uplink`, `bridge` (the gateway bridge's own port) or `management`.
    pub interface: String,
    /// Received by the node. Fast packets of the uplink are those outside of tunnels.
    #[serde(rename = "in")]
    pub received: ByPath,
    /// Sent by the node, likewise.
    #[serde(rename = "out")]
    pub sent: ByPath,
}

/// Counters of one tunnel and VNI.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelCounters {
    /// Tunnel endpoint of the remote node.
    pub remote: IpAddr,
    /// Name of the remote node, where known.
    pub node: Option<String>,
    /// Virtual network identifier.
    pub vni: u32,
    /// Received from the remote node.
    #[serde(rename = "in")]
    pub received: ByPath,
    /// Sent to the remote node.
    #[serde(rename = "out")]
    pub sent: ByPath,
}

/// Counters of one interface of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounters {
    /// Id of the interface: the container id, of further interfaces one with the container id at its end.
    pub id: String,
    /// `NAMESPACE/NAME`, and `/INTERFACE` if it is not the pod's first; where known.
    pub pod: Option<String>,
    /// Virtual network of the interface, `NAMESPACE/NAME`; `None`: the cluster's network, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
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
    /// Fast packets as a share of all packets, 0 to 1; `None` when there were none.
    pub hit_ratio: Option<f64>,
}

impl ByPath {
    /// Counters with their hit ratio.
    pub fn new(fast: Amount, slow: Amount) -> Self {
        Self { fast, slow, hit_ratio: share(fast.packets, slow.packets) }
    }
}

/// `fast / (fast + slow)`, 0 to 1; `None` when both are 0.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
pub fn share(fast: u64, slow: u64) -> Option<f64> {
    let all = fast.saturating_add(slow);
    (all > 0).then(|| fast as f64 / all as f64)
}
