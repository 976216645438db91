//! [`FlowCache`]: interface of the agent to the flow cache in the kernel, with its data types and errors. `bpf` implements it.
//!
//! Control calls (`invalidate`, `set_gate`, `heartbeat`) read and write one pinned map each, and wait only for other control
//! calls.

pub(in crate::flow_cache) mod connections;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::time::Duration;

use api::MacAddr;
use api::admin::Amount;
use ebpf::layout::reason::Reason;
use serde::Serialize;

pub use connections::Connections;
pub use services::{Carried, See, ServiceAddress, ServiceCache};

/// Grace period: how long cached flows are used without refresh while OVS is not monitored.
pub const HOLD: Duration = Duration::from_secs(10);

/// Mode bits of the flow cache. The default has none set: every packet takes the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "four independent switches, as in the map")]
pub struct Gate {
    /// Cached flows are forwarded.
    pub forward: bool,
    /// New flows are learned.
    pub learn: bool,
    /// TCP flows are forwarded and learned too. Set only while OVS's connection tracking is known not to check sequence numbers.
    pub tcp: bool,
    /// Grace period: entries are not refreshed, for [`HOLD`] at most. The programs end it without the agent.
    pub hold: bool,
}

/// Tunnel endpoint of this node, as the programs compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Underlay {
    /// IPv4 address of the tunnel endpoint. An IPv6 underlay has no fast path.
    pub address: Ipv4Addr,
    /// MAC address of the gateway bridge.
    pub mac: MacAddr,
    /// MTU of the uplink, in bytes.
    pub mtu: u32,
}

/// What the fast path needs for the node's own traffic and for that of the uplink without a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayEnd {
    /// MAC address of the gateway bridge: only packets to it are learned from the uplink.
    pub mac: MacAddr,
    /// MTU of the uplink, in bytes.
    pub mtu: u32,
}

/// An interface of a bridge that leads to a physical network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhysicalPort {
    /// The bridge's interface on the physical network.
    Interface {
        /// Packets use the fast path.
        fast: bool,
    },
    /// The bridge's own port, which gets copies of what the bridge floods.
    Own,
}

impl PhysicalPort {
    /// Whether it is the bridge's own port.
    pub fn is_own(self) -> bool {
        self == Self::Own
    }

    /// Whether its packets use the fast path.
    pub fn is_fast(self) -> bool {
        self == Self::Interface { fast: true }
    }
}

/// Timing of the flow cache, and its rate limit for new entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Age at which an entry is refreshed: a packet of the flow goes through OVS and the result is compared.
    pub refresh: Duration,
    /// How long a refresh waits for a packet that is cheap to delay.
    pub slack: Duration,
    /// How long OVS may take for the revalidation packet before the entry expires.
    pub grace: Duration,
    /// New entries per CPU in about 125 ms.
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

/// Action of a cached flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Action {
    /// Encapsulate a packet of the pod and send it to another node.
    #[serde(rename_all = "camelCase")]
    Tunnel {
        /// Tunnel endpoint of the remote node.
        remote: Ipv4Addr,
        /// Virtual network identifier.
        vni: u32,
        /// OVN's Geneve option: ingress port key (15 bits) and egress port key (16 bits).
        option: u32,
    },
    /// Forward to a pod of this node, to the node, or out of the uplink without a tunnel.
    #[serde(rename_all = "camelCase")]
    Local {
        /// Id of the receiving endpoint ([`crate::attach::interface_id`]), or name of the interface.
        to: String,
    },
    /// Decapsulate a packet of another node and deliver it, or send it out of the uplink.
    #[serde(rename_all = "camelCase")]
    Deliver {
        /// Tunnel endpoint of the remote node.
        remote: Ipv4Addr,
        /// Virtual network identifier.
        vni: u32,
        /// OVN's Geneve option: ingress port key (15 bits) and egress port key (16 bits).
        option: u32,
    },
}

/// Addresses and ports of a packet after OVS has translated them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Translated {
    /// Source.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
}

/// One cached flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Id of the sending endpoint, or of the receiving one for [`Action::Deliver`]; name of an interface where it is none of a pod.
    pub endpoint: String,
    /// One end is the node itself, or outside of the cluster.
    pub gateway: bool,
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// Source address of the packets.
    pub source: IpAddr,
    /// Destination address of the packets.
    pub destination: IpAddr,
    /// Source port of the packets.
    pub source_port: u16,
    /// Destination port of the packets.
    pub destination_port: u16,
    /// What OVS makes of addresses and ports, if it translates them (NAT).
    pub translated: Option<Translated>,
    /// Cached action.
    pub action: Action,
    /// Any change ends the entry, as it cannot be told which ones concern it.
    pub sensitive: bool,
    /// Epoch in which the entry was learned; it is valid in this epoch only.
    pub epoch: u32,
    /// The entry belongs to the current epoch, and nothing that concerns it has changed since.
    pub current: bool,
    /// The entry is current and in use.
    pub valid: bool,
    /// FIN or RST was seen: the entry carries nothing, and nothing is learned of the connection before the next SYN.
    pub closing: bool,
    /// The flow's service is kept off the cache (`slipctl path service`): the entry carries nothing, and counts what OVS carries.
    pub slow: bool,
    /// A revalidation packet is inside OVS.
    pub probing: bool,
    /// Amount by which the TTL or hop limit is decremented.
    pub ttl_step: u8,
    /// Destination MAC before OVS: as the pod writes it, or of the inner frame in a tunnel.
    pub destination_mac: MacAddr,
    /// Source MAC before OVS: as the pod writes it, or of the inner frame in a tunnel.
    pub source_mac: MacAddr,
    /// Destination MAC after OVS: of the inner frame in a tunnel, else as the pod receives it.
    pub delivered_destination_mac: MacAddr,
    /// Source MAC after OVS: of the inner frame in a tunnel, else as the pod receives it.
    pub delivered_source_mac: MacAddr,
    /// Milliseconds since the entry was learned.
    pub age_ms: u64,
    /// Milliseconds until the next refresh; negative when it is due.
    pub refresh_in_ms: i64,
    /// Packets that used the entry.
    pub packets: u64,
    /// Bytes of them on the wire, without a tunnel's headers.
    pub bytes: u64,
}

/// Fill level of an eBPF map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pressure {
    /// Name of the map.
    pub map: &'static str,
    /// Number of entries. Entries of ended flows count until the next sweep.
    pub entries: u64,
    /// Maximum number of entries.
    pub capacity: u64,
}

/// Result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of entries removed.
    pub removed: u64,
    /// Fill levels of all maps after the sweep, as from [`FlowCache::pressure`].
    pub maps: Vec<Pressure>,
}

/// Verdict for a flow: the cached one or that of OVS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CachedVerdict {
    /// Index of the egress interface.
    pub target: u32,
    /// `tunnel`, `local` or `deliver`.
    pub kind: &'static str,
    /// Source of the packet after OVS.
    pub source: SocketAddr,
    /// Destination of the packet after OVS.
    pub destination: SocketAddr,
    /// Amount by which the TTL or hop limit is decremented.
    pub ttl_step: u8,
    /// Headers in front of the IP packet, in hexadecimal.
    pub header: String,
}

/// A refresh in which OVS's verdict differed from the entry within one epoch. The programs keep the endpoint on the slow path
/// until the epoch changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Divergence {
    /// Id of the endpoint, or `interface N` when the endpoint no longer exists.
    pub endpoint: String,
    /// Epoch of the entry.
    pub epoch: u32,
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// Source address of the packet.
    pub source: IpAddr,
    /// Destination address of the packet.
    pub destination: IpAddr,
    /// Source port of the packet.
    pub source_port: u16,
    /// Destination port of the packet.
    pub destination_port: u16,
    /// Verdict in the entry.
    pub remembered: CachedVerdict,
    /// Verdict of OVS.
    pub ovs: CachedVerdict,
}

/// Packet and byte counters of one tunnel and VNI, by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tunnel {
    /// Tunnel endpoint of the remote node.
    pub remote: IpAddr,
    /// Virtual network identifier.
    pub vni: u32,
    /// Received on the fast path.
    pub fast_in: Amount,
    /// Received through OVS.
    pub slow_in: Amount,
    /// Sent by the fast path.
    pub fast_out: Amount,
    /// Sent through OVS.
    pub slow_out: Amount,
}

/// Packet and byte counters of one endpoint, by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAmounts {
    /// Id of the endpoint.
    pub endpoint: String,
    /// Sent by the pod on the fast path.
    pub fast_from: Amount,
    /// Sent by the pod through OVS.
    pub slow_from: Amount,
    /// Delivered to the pod on the fast path.
    pub fast_to: Amount,
    /// Delivered to the pod by OVS.
    pub slow_to: Amount,
    /// Epoch of the last divergence; the endpoint takes the slow path during that epoch.
    pub diverged: Option<u32>,
}

/// Packet and byte counters of an interface that is none of a pod, seen from the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceAmounts {
    /// `uplink`, `bridge` or `management`.
    pub interface: &'static str,
    /// Received on the fast path; of the uplink outside of tunnels.
    pub fast_in: Amount,
    /// Received through OVS.
    pub slow_in: Amount,
    /// Sent on the fast path; of the uplink outside of tunnels.
    pub fast_out: Amount,
    /// Sent through OVS.
    pub slow_out: Amount,
}

/// Error of an operation on the flow cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// A map is full.
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
        /// Failed operation, such as `read` or `write`.
        action: &'static str,
        /// Error of the kernel.
        reason: String,
    },
    /// The eBPF programs or their maps are missing or of another version.
    #[error("{0}")]
    Programs(String),
}

/// A change of scopes, for [`FlowCache::change_scopes`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeChange {
    /// Buckets of the scopes that changed ([`ebpf::layout::scope`]), each with whether nothing is learned in it from now on.
    pub buckets: Vec<(u32, bool)>,
    /// Nothing is learned in some bucket, of these or of others.
    pub closing: bool,
}

/// Interface to the flow cache in the kernel.
///
/// # Errors
/// All methods fail when a map cannot be read or written ([`CacheError`]).
#[expect(clippy::missing_errors_doc, reason = "all fail alike, as the trait says")]
pub trait FlowCache: std::fmt::Debug + Send + Sync {
    /// Current epoch.
    fn epoch(&self) -> Result<u32, CacheError>;
    /// Invalidates all entries. Returns the new epoch.
    fn invalidate(&self) -> Result<u32, CacheError>;
    /// Changes scopes: entries that are of one of them, or that any change ends, are no longer valid, and nothing is learned in those that
    /// are closed.
    fn change_scopes(&self, change: &ScopeChange) -> Result<(), CacheError>;
    /// Lets entries be learned in every scope again: an agent that ended in between may have left some closed.
    fn open_scopes(&self) -> Result<(), CacheError>;
    /// Sets the mode bits. The grace period starts when [`Gate::hold`] was not set before; setting it again does not extend it.
    fn set_gate(&self, gate: Gate) -> Result<(), CacheError>;
    /// Mode bits as the programs read them.
    fn gate(&self) -> Result<Gate, CacheError>;
    /// Remaining grace period; zero when it is over.
    fn hold_left(&self) -> Result<Duration, CacheError>;
    /// Writes the heartbeat. The programs stop learning after 5 s without one.
    fn heartbeat(&self) -> Result<(), CacheError>;
    /// Sets the tunnel endpoint. `None`: tunnelled packets take the slow path.
    fn set_underlay(&self, underlay: Option<Underlay>) -> Result<(), CacheError>;
    /// Sets what the fast path needs for the node's own traffic and that of the uplink without a tunnel. `None`: it takes the slow
    /// path. The caller must invalidate the cache after a change.
    fn set_gateway(&self, gateway: Option<GatewayEnd>) -> Result<(), CacheError>;
    /// Sets the complete list of interfaces that lead to physical networks, by their indexes. Those of other interfaces go through OVS
    /// alone, and so do their packets that are in OVS now: pods of their networks must be slow already.
    fn set_physical(&self, interfaces: &BTreeMap<u32, PhysicalPort>) -> Result<(), CacheError>;
    /// Sets the complete list of remote tunnel endpoints; nothing is learned from other outer sources. After the removal of an
    /// endpoint the caller must invalidate the cache.
    fn set_remotes(&self, remotes: &BTreeSet<Ipv4Addr>) -> Result<(), CacheError>;
    /// Sets the timing, from the next packet on.
    fn set_timing(&self, timing: Timing) -> Result<(), CacheError>;
    /// Sets whether endpoint `id` uses the fast path. An unknown endpoint is ignored.
    fn set_endpoint_fast(&self, id: &str, fast: bool) -> Result<(), CacheError>;
    /// Marks endpoint `id` as diverged: it takes the slow path while `epoch` is current. An unknown endpoint is ignored.
    fn set_endpoint_diverged(&self, id: &str, epoch: u32) -> Result<(), CacheError>;
    /// At most `limit` cached flows, valid ones first.
    fn flows(&self, limit: usize) -> Result<Vec<Flow>, CacheError>;
    /// Calls `visit` for every cached flow, in no order, until it breaks. Holds one flow at a time, however many there are.
    fn each_flow(&self, visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>) -> Result<(), CacheError>;
    /// Fill levels of the maps. Iterates over all entries: call at most every few seconds.
    fn pressure(&self) -> Result<Vec<Pressure>, CacheError>;
    /// Removes expired entries, a limited number per call. Must not be called in a grace period, when entries are used beyond their
    /// deadlines. Iterates over the maps once, and returns the fill levels as [`Self::pressure`] does.
    fn sweep(&self) -> Result<Swept, CacheError>;
    /// Removes the entries of these connections, in both directions; returns how many. Iterates over all entries.
    fn end_connections(&self, connections: &Connections) -> Result<u64, CacheError>;
    /// Divergences found since the last call.
    fn divergences(&self) -> Result<Vec<Divergence>, CacheError>;
    /// Counters of all tunnels.
    fn tunnels(&self) -> Result<Vec<Tunnel>, CacheError>;
    /// Counters of all endpoints.
    fn endpoints(&self) -> Result<Vec<EndpointAmounts>, CacheError>;
    /// Counters of the uplink and of the node's own ports.
    fn interfaces(&self) -> Result<Vec<InterfaceAmounts>, CacheError>;
    /// Packet count of every reason.
    fn reasons(&self) -> Result<Vec<(Reason, u64)>, CacheError>;
    /// What it knows of services; `None` if it knows none of them.
    fn services(&self) -> Option<&dyn ServiceCache> {
        None
    }
}
