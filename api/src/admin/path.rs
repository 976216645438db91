//! What the agent tells of the fast path: the paths, why they are so, and how fresh what is known of OVS is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is wanted of the node: `auto`, `ebpf` or `ovs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePath {
    /// The fast path where it may be used.
    #[default]
    Auto,
    /// The same, asked for by name: that it cannot be used is worth a warning.
    Ebpf,
    /// Every packet through OVS.
    Ovs,
}

impl NodePath {
    /// As people write it.
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
            other => Err(format!("path `{other}`: `auto`, `ebpf` or `ovs` is needed")),
        }
    }
}

/// Which way packets take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Cached flows skip OVS.
    Ebpf,
    /// Every packet through OVS.
    Ovs,
}

/// A path and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reasoned {
    /// The path.
    pub path: Path,
    /// Why it is this one.
    pub reason: String,
}

impl Reasoned {
    /// On the fast path.
    pub fn ebpf(reason: impl Into<String>) -> Self {
        Self { path: Path::Ebpf, reason: reason.into() }
    }

    /// Through OVS.
    pub fn ovs(reason: impl Into<String>) -> Self {
        Self { path: Path::Ovs, reason: reason.into() }
    }
}

/// What the flow cache may do, as the programs have it, for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "four independent switches, as in the map")]
pub struct GateStatus {
    /// Cached flows are forwarded.
    pub forward: bool,
    /// New flows are learned.
    pub learn: bool,
    /// TCP too.
    pub tcp: bool,
    /// Nothing is sent to OVS for refresh.
    pub hold: bool,
}

/// Whether changes of OVS are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sight {
    /// They are; the fast path is open.
    Open,
    /// They are not, since a moment ago: cached flows go on without refresh.
    Hold,
    /// They are not: the fast path is closed.
    Closed,
}

/// The tunnel endpoint that the programs compare with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnderlayStatus {
    /// Its address.
    pub address: Ipv4Addr,
    /// MAC of the node on the uplink.
    pub mac: String,
    /// MTU of the uplink, in bytes.
    pub mtu: u32,
}

/// One pod's endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStatus {
    /// Container id.
    pub id: String,
    /// `NAMESPACE_POD`, the logical port; empty when the endpoint has no OVS port.
    pub port: String,
    /// The pod's addresses, as the port's row has them.
    pub addresses: String,
    /// Path and why.
    #[serde(flatten)]
    pub path: Reasoned,
}

/// The flow cache at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// What is wanted of the node.
    pub wanted: NodePath,
    /// Path of TCP, and why.
    pub tcp: Reasoned,
    /// Path across the tunnel, and why.
    pub tunnel: Reasoned,
    /// Tunnel endpoint, where the fast path crosses the tunnel.
    pub underlay: Option<UnderlayStatus>,
    /// Entries of another epoch are not used.
    pub epoch: Option<u32>,
    /// What it may do.
    pub gate: GateStatus,
    /// Whether changes of OVS are seen.
    pub sight: Sight,
    /// Why they are not all seen; empty when they are.
    pub blind: String,
    /// Milliseconds that the hold lasts already; none outside of one.
    pub hold_ms: Option<u64>,
    /// An entry is sent through OVS again after so many milliseconds.
    pub refresh_ms: u64,
    /// Times the cache was made invalid, by what caused it.
    pub bumps: BTreeMap<String, u64>,
    /// Times OVS answered otherwise than was remembered, since the agent's start.
    pub divergences: u64,
}

/// Everything there is to tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The node's path and why.
    pub node: Reasoned,
    /// The cache.
    #[serde(flatten)]
    pub cache: Cache,
    /// Endpoints, by container id.
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
            path: Reasoned::ovs("asked for"),
        };
        let text = serde_json::to_value(&endpoint).unwrap();
        assert_eq!(
            text,
            serde_json::json!({"id": "c1", "port": "red_a", "addresses": "10.244.0.3/24", "path": "ovs", "reason": "asked for"})
        );
        assert_eq!(serde_json::from_value::<EndpointStatus>(text).unwrap(), endpoint);
    }

    #[test]
    fn a_path_is_one_of_three_words() {
        for path in [NodePath::Auto, NodePath::Ebpf, NodePath::Ovs] {
            assert_eq!(path.name().parse(), Ok(path));
        }
        assert!("fast".parse::<NodePath>().unwrap_err().contains("`auto`, `ebpf` or `ovs`"));
    }
}
