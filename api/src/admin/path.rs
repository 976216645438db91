//! Status of the fast path: path of the node, of its endpoints and of the tunnel with the reason for each, and whether the
//! flow cache is in sync with OVS.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Path requested for the node (`slipctl path node`): `auto`, `ebpf` or `ovs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePath {
    /// Fast path for eligible endpoints.
    #[default]
    Auto,
    /// Fast path for eligible endpoints, and a warning if the node is not eligible.
    Ebpf,
    /// Every packet through OVS.
    Ovs,
}

impl NodePath {
    /// The name used on the command line, in JSON and in the state file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ebpf => "ebpf",
            Self::Ovs => "ovs",
        }
    }
}

impl FromStr for NodePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "ebpf" => Ok(Self::Ebpf),
            "ovs" => Ok(Self::Ovs),
            other => Err(format!("path `{other}` is unknown; use `auto`, `ebpf` or `ovs`")),
        }
    }
}

/// Path that packets take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Fast path: packets of cached flows bypass OVS.
    Ebpf,
    /// Every packet through OVS.
    Ovs,
}

impl Path {
    /// The name used on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ovs => "ovs",
        }
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ebpf" => Ok(Self::Ebpf),
            "ovs" => Ok(Self::Ovs),
            other => Err(format!("path `{other}` is unknown; use `ebpf` or `ovs`")),
        }
    }
}

/// A path and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStatus {
    /// The path.
    pub path: Path,
    /// Reason, as text for an operator.
    pub reason: String,
}

impl PathStatus {
    /// The fast path, for `reason`.
    pub fn ebpf(reason: impl Into<String>) -> Self {
        Self { path: Path::Ebpf, reason: reason.into() }
    }

    /// The slow path (OVS), for `reason`.
    pub fn ovs(reason: impl Into<String>) -> Self {
        Self { path: Path::Ovs, reason: reason.into() }
    }
}

/// Mode bits of the flow cache, as the eBPF programs read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "four independent switches, as in the map")]
pub struct GateStatus {
    /// Cached flows are forwarded.
    pub forward: bool,
    /// New flows are learned.
    pub learn: bool,
    /// TCP flows are forwarded and learned, not only UDP.
    pub tcp: bool,
    /// Grace period: no entry is sent to OVS for revalidation.
    pub hold: bool,
}

/// Whether the agent is notified of OVS changes (OpenFlow flow monitor, OVSDB, connection tracking).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MonitorHealth {
    /// All sources are connected; entries are used and learned.
    #[serde(rename = "open")]
    Synced,
    /// A source is lost, for less than the grace period: entries are used without revalidation, none are learned.
    #[serde(rename = "hold")]
    GracePeriod,
    /// A source is lost and the grace period is over: every packet goes through OVS.
    #[serde(rename = "closed")]
    Stale,
}

/// Tunnel endpoint of this node, as given to the eBPF programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnderlayStatus {
    /// IPv4 address of the tunnel endpoint.
    pub address: Ipv4Addr,
    /// MAC of the node on the uplink.
    pub mac: String,
    /// MTU of the uplink, in bytes.
    pub mtu: u32,
}

/// Path of one pod's endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStatus {
    /// Id of the interface: the container id, of further interfaces one with the container id at its end.
    pub id: String,
    /// `NAMESPACE_POD`, the logical port; empty when the endpoint has no OVS port.
    pub port: String,
    /// The pod's addresses, as the port's row has them.
    pub addresses: String,
    /// Path of the endpoint and the reason for it.
    #[serde(flatten)]
    pub path: PathStatus,
}

/// The flow cache at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// Requested path of the node.
    pub wanted: NodePath,
    /// Path of TCP flows and the reason for it.
    pub tcp: PathStatus,
    /// Path of tunnelled packets and the reason for it.
    pub tunnel: PathStatus,
    /// Path of the node's own traffic and of that with the outside.
    #[serde(default = "no_gateway_path")]
    pub gateway: PathStatus,
    /// Tunnel endpoint; `None` when tunnelled packets take the slow path.
    pub underlay: Option<UnderlayStatus>,
    /// Current epoch (generation); entries of any other epoch are invalid. `None` without eBPF programs.
    pub epoch: Option<u32>,
    /// Mode bits.
    pub gate: GateStatus,
    /// Whether the agent is notified of OVS changes. `sight` in JSON.
    #[serde(rename = "sight")]
    pub monitor: MonitorHealth,
    /// Why OVS changes are not monitored; empty when they are. `blind` in JSON.
    #[serde(rename = "blind")]
    pub unsynced_reason: String,
    /// Milliseconds since the grace period began; `None` outside of one.
    pub hold_ms: Option<u64>,
    /// Milliseconds after which an entry is revalidated by OVS.
    pub refresh_ms: u64,
    /// Number of invalidations of the whole cache by cause, since the agent's start. `bumps` in JSON.
    #[serde(rename = "bumps")]
    pub invalidations: BTreeMap<String, u64>,
    /// Number of changes by cause that ended only the entries that they can concern, since the agent's start. Entries that any
    /// change ends are among them.
    #[serde(default)]
    pub scoped_changes: BTreeMap<String, u64>,
    /// Why every change of OVS's flows ends all entries: what stands in the flow table that OVN is not known to write. Empty when there is
    /// no such thing.
    #[serde(default)]
    pub unscoped_reason: String,
    /// Revalidations in which OVS's verdict differed from the entry, since the agent's start.
    pub divergences: u64,
    /// Services that are kept off the cache (`slipctl path service`), as `NAMESPACE/NAME`.
    #[serde(default)]
    pub slow_services: Vec<String>,
    /// Why the agent does not hear of connections that the kernel's connection tracking forgets, whose entries then end by their
    /// refresh; empty when it hears of them or need not.
    #[serde(default)]
    pub tracking_unheard: String,
}

/// Path of the gateway bridge's traffic with an agent that does not report it.
fn no_gateway_path() -> PathStatus {
    PathStatus::ovs("not reported by this version of the agent")
}

/// Status of the flow cache and of the endpoints that use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Path of the node and the reason for it.
    pub node: PathStatus,
    /// State of the flow cache.
    #[serde(flatten)]
    pub cache: Cache,
    /// All endpoints of the node, sorted by logical port.
    pub endpoints: Vec<EndpointStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_shows_its_path_beside_its_name() {
        let endpoint = EndpointStatus {
            id: "c1".to_owned(),
            port: "red_a".to_owned(),
            addresses: "10.244.0.3/24".to_owned(),
            path: PathStatus::ovs("requested"),
        };
        let text = serde_json::to_value(&endpoint).unwrap();
        assert_eq!(
            text,
            serde_json::json!({"id": "c1", "port": "red_a", "addresses": "10.244.0.3/24", "path": "ovs", "reason": "requested"})
        );
        assert_eq!(serde_json::from_value::<EndpointStatus>(text).unwrap(), endpoint);
    }

    #[test]
    fn a_path_is_one_of_three_words() {
        for path in [NodePath::Auto, NodePath::Ebpf, NodePath::Ovs] {
            assert_eq!(path.name().parse(), Ok(path));
        }
        for path in [Path::Ebpf, Path::Ovs] {
            assert_eq!(path.name().parse(), Ok(path));
        }
        assert!("auto".parse::<Path>().unwrap_err().contains("`ebpf` or `ovs`"));
        assert!("fast".parse::<NodePath>().unwrap_err().contains("`auto`, `ebpf` or `ovs`"));
    }
}
