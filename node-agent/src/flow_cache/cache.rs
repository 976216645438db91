//! The flow cache as the rest of the agent sees it: what can be told to it, and what can be read from it. `bpf` is
//! behind it.
//!
//! Calls that steer (`bump`, `set_gate`, `heartbeat`) are one read and one write of a pinned map each, and wait for nothing but
//! another such call.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use api::MacAddr;
use api::admin::Amount;
use ebpf::reason::Reason;
use serde::Serialize;

/// How long cached flows go on without refresh while OVS is away.
pub const HOLD: Duration = Duration::from_secs(10);

/// What the flow cache may do at this moment. The default is nothing: every packet takes the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "four independent switches, as in the map")]
pub struct Gate {
    /// Cached flows are forwarded.
    pub forward: bool,
    /// New flows are learned.
    pub learn: bool,
    /// TCP too. In the userspace datapath only while its sequence check is known to be off.
    pub tcp: bool,
    /// OVS is away: flows are not sent to it for refresh, for [`HOLD`] at most. The programs end it by themselves.
    pub hold: bool,
}

/// The node's tunnel endpoint, as the programs compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Underlay {
    /// Address of the tunnel endpoint. With an IPv6 underlay there is none, and all is slow.
    pub address: Ipv4Addr,
    /// MAC of the node on the uplink.
    pub mac: MacAddr,
    /// MTU of the uplink, in bytes.
    pub mtu: u32,
}

/// Settings of the flow cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// An entry is sent through OVS again after this.
    pub refresh: Duration,
    /// How long a refresh waits for a packet that is cheap to delay.
    pub slack: Duration,
    /// How long OVS may take for the refresh packet.
    pub grace: Duration,
    /// New entries per CPU in about an eighth of a second.
    pub budget: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(2),
            slack: Duration::from_millis(200),
            grace: Duration::from_millis(200),
            budget: 4_096,
        }
    }
}

/// Where a cached flow goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Action {
    /// Out of the pod, to another node.
    #[serde(rename_all = "camelCase")]
    Tunnel {
        /// The other node.
        remote: Ipv4Addr,
        /// Virtual network identifier.
        vni: u32,
        /// Ingress and egress port keys of OVN's option.
        option: u32,
    },
    /// To a pod of this node.
    #[serde(rename_all = "camelCase")]
    Local {
        /// Container id of the receiver.
        to: String,
    },
    /// From another node to the pod.
    #[serde(rename_all = "camelCase")]
    Deliver {
        /// The other node.
        remote: Ipv4Addr,
        /// Virtual network identifier.
        vni: u32,
        /// Ingress and egress port keys of OVN's option.
        option: u32,
    },
}

/// One cached flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Container id of the pod it belongs to: the sender, for [`Action::Deliver`] the receiver.
    pub endpoint: String,
    /// 6 or 17.
    pub protocol: u8,
    /// As the packets show it.
    pub source: IpAddr,
    /// As the packets show it.
    pub destination: IpAddr,
    /// As the packets show it.
    pub source_port: u16,
    /// As the packets show it.
    pub destination_port: u16,
    /// What is done with the packets.
    pub action: Action,
    /// Epoch in which it was learned; valid only in this one.
    pub epoch: u32,
    /// The entry's epoch is the node's, and packets may use it.
    pub valid: bool,
    /// A refresh packet is inside OVS.
    pub probing: bool,
    /// How much the TTL or hop limit is lowered.
    pub ttl_step: u8,
    /// Destination MAC before (as the pod writes it; for [`Action::Deliver`] as OVS delivers it).
    pub destination_mac: MacAddr,
    /// Cause MAC, likewise.
    pub source_mac: MacAddr,
    /// Destination MAC behind OVS: of the inner frame in a tunnel, else as the pod gets it.
    pub delivered_destination_mac: MacAddr,
    /// Cause MAC, likewise.
    pub delivered_source_mac: MacAddr,
    /// Milliseconds since it was learned.
    pub age_ms: u64,
    /// Milliseconds until the refresh; negative when it is due.
    pub refresh_in_ms: i64,
    /// Packets that used the entry.
    pub packets: u64,
}

/// How full a map is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pressure {
    /// Name of the map.
    pub map: &'static str,
    /// Entries now. Those of flows that have ended count until the next sweep; in `CONNS` until their place is needed.
    pub entries: u64,
    /// Entries it can hold.
    pub capacity: u64,
}

/// What a sweep did and saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were removed.
    pub removed: u64,
    /// How full the maps are after it, all of them, as [`FlowCache::pressure`] has them.
    pub maps: Vec<Pressure>,
}

/// What OVS answered, or what was remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Interface index of the target.
    pub target: u32,
    /// `tunnel`, `local` or `deliver`.
    pub kind: &'static str,
    /// How much the TTL or hop limit is lowered.
    pub ttl_step: u8,
    /// The bytes in front, in hexadecimal.
    pub header: String,
}

/// OVS answered otherwise than was remembered, although nothing was announced. The programs have taken the endpoint off the
/// fast path until the epoch moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Divergence {
    /// Container id, or `interface N` when it is not known any more.
    pub endpoint: String,
    /// The epoch.
    pub epoch: u32,
    /// 6 or 17.
    pub protocol: u8,
    /// As the packet shows it.
    pub source: IpAddr,
    /// As the packet shows it.
    pub destination: IpAddr,
    /// As the packet shows it.
    pub source_port: u16,
    /// As the packet shows it.
    pub destination_port: u16,
    /// What was remembered.
    pub remembered: Answer,
    /// What OVS did.
    pub ovs: Answer,
}

/// Packets and bytes through one tunnel, by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tunnel {
    /// The other node.
    pub remote: IpAddr,
    /// Virtual network identifier.
    pub vni: u32,
    /// Received by the fast path.
    pub fast_in: Amount,
    /// Received through OVS.
    pub slow_in: Amount,
    /// Sent by the fast path.
    pub fast_out: Amount,
    /// Sent through OVS.
    pub slow_out: Amount,
}

/// Packets and bytes of one pod, by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAmounts {
    /// Container id.
    pub endpoint: String,
    /// Sent by the pod on the fast path.
    pub fast_from: Amount,
    /// Sent by the pod through OVS.
    pub slow_from: Amount,
    /// Delivered to the pod by the fast path.
    pub fast_to: Amount,
    /// Delivered to the pod by OVS.
    pub slow_to: Amount,
    /// Epoch in which OVS answered otherwise than remembered; the endpoint is slow while it lasts.
    pub diverged: Option<u32>,
}

/// What went wrong between the agent and the flow cache's maps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// A map has no room for another entry.
    #[error("map {map} is full")]
    MapFull {
        /// Name of the map.
        map: &'static str,
    },
    /// A map cannot be read or written.
    #[error("cannot {action} map {map}: {reason}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// What was tried, such as `read` or `write`.
        action: &'static str,
        /// What the kernel says.
        reason: String,
    },
    /// The programs are not as the agent needs them.
    #[error("{0}")]
    Programs(String),
}

/// The flow cache.
pub trait FlowCache: std::fmt::Debug + Send + Sync {
    /// The node's epoch now.
    fn epoch(&self) -> Result<u32, CacheError>;
    /// Makes every entry invalid. Returns the new epoch.
    fn invalidate(&self) -> Result<u32, CacheError>;
    /// Sets what the cache may do. A hold begins when it was not set before; to set it again does not prolong it.
    fn set_gate(&self, gate: Gate) -> Result<(), CacheError>;
    /// What it may do.
    fn gate(&self) -> Result<Gate, CacheError>;
    /// How long a hold that is set still lasts; 0 when it is over.
    fn hold_left(&self) -> Result<Duration, CacheError>;
    /// Says that the agent is alive. Without it for 5 s the programs stop learning.
    fn heartbeat(&self) -> Result<(), CacheError>;
    /// Tells the tunnel endpoint. `None`: nothing crosses the tunnel on the fast path.
    fn set_underlay(&self, underlay: Option<Underlay>) -> Result<(), CacheError>;
    /// Tells the nodes whose tunnelled packets OVS takes, all of them: nothing is learned from others. What is known of one that
    /// is not there any more has to be made invalid after this.
    fn set_remotes(&self, remotes: &BTreeSet<Ipv4Addr>) -> Result<(), CacheError>;
    /// Changes the timing. It holds from the next packet on.
    fn set_timing(&self, timing: Timing) -> Result<(), CacheError>;
    /// Puts an endpoint on the fast path or takes it off. An endpoint that is not there is fine.
    fn set_endpoint_fast(&self, id: &str, fast: bool) -> Result<(), CacheError>;
    /// OVS would do otherwise than an entry of this epoch: the endpoint is slow while the epoch lasts. An endpoint that is not
    /// there is fine.
    fn set_endpoint_diverged(&self, id: &str, epoch: u32) -> Result<(), CacheError>;
    /// Cached flows, at most `limit`, valid ones first.
    fn flows(&self, limit: usize) -> Result<Vec<Flow>, CacheError>;
    /// How full the maps are. Walks them: not more often than every few seconds.
    fn pressure(&self) -> Result<Vec<Pressure>, CacheError>;
    /// Removes entries that no packet will use again, a limited number at a time. Not while the gate holds: then entries are
    /// used beyond their deadlines. Walks the maps once, instead of [`Self::pressure`].
    fn sweep(&self) -> Result<Swept, CacheError>;
    /// Divergences since the last call.
    fn divergences(&self) -> Result<Vec<Divergence>, CacheError>;
    /// Tunnels with what went through them.
    fn tunnels(&self) -> Result<Vec<Tunnel>, CacheError>;
    /// Endpoints with what went through them.
    fn endpoints(&self) -> Result<Vec<EndpointAmounts>, CacheError>;
    /// Every reason with how often it was counted.
    fn reasons(&self) -> Result<Vec<(Reason, u64)>, CacheError>;
}
