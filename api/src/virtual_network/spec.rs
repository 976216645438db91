//! What a user writes: the fields of `spec`, as text where a text may be wrong.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quote::quoted;

/// Which pods may attach to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Scope {
    /// Pods of the network's own namespace may attach.
    #[default]
    Namespace,
    /// Pods of every namespace may attach.
    Cluster,
}

/// How far packets of a network get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Reach {
    /// Only the network itself.
    #[default]
    Isolated,
    /// Also the cluster's pods and the other networks on the cluster router.
    ClusterRouter,
    /// Also the outside, with a node's address as source.
    Outside,
    /// A physical network of the nodes, or a VLAN there ([`Localnet`]); nothing of the cluster's.
    Localnet,
}

impl Reach {
    /// Whether the network has a port on the cluster router, so that its addresses must be unique.
    pub fn is_routed(self) -> bool {
        matches!(self, Self::ClusterRouter | Self::Outside)
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names are those of the variants.
        fmt::Debug::fmt(self, f)
    }
}

/// The value of `all` whose name is `text`, in any case.
fn named<T: fmt::Display + Copy>(all: &[T], text: &str, what: &str) -> Result<T, String> {
    let found = all.iter().find(|one| one.to_string().eq_ignore_ascii_case(text.trim()));
    let known = || all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    found.copied().ok_or_else(|| format!("`{text}` is no {what}; supported: {}", known()))
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names are those of the variants.
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&[Self::Namespace, Self::Cluster], text, "scope")
    }
}

impl FromStr for Reach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&[Self::Isolated, Self::ClusterRouter, Self::Outside, Self::Localnet], text, "reach")
    }
}

/// How long a pod's addresses are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifecycle {
    /// Addresses live as long as an IPAMClaim of the pod; for pods of StatefulSets the controller makes the claims.
    Persistent,
}

/// How a network gives addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipam {
    /// Without it a pod's addresses end with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
}

impl Ipam {
    /// Addresses of pods of StatefulSets outlive the pods.
    pub const PERSISTENT: Self = Self { lifecycle: Some(Lifecycle::Persistent) };
}

/// The physical network behind a network with reach `Localnet`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Localnet {
    /// Name of the physical network in `ovn-bridge-mappings` of the nodes (ovn-controller(8)), where it leads to a bridge of OVS.
    pub physical_network: String,
    /// VLAN ID (IEEE 802.1Q); packets have no tag where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

impl fmt::Display for Localnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            Some(vlan) => write!(f, "VLAN {vlan} of physical network {}", self.physical_network),
            None => write!(f, "physical network {} without a VLAN", self.physical_network),
        }
    }
}

/// `spec` of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VirtualNetworkSpec {
    /// Which pods may use it.
    #[serde(default)]
    pub scope: Scope,
    /// CIDRs, one or two, at most one of each family.
    pub subnets: Vec<String>,
    /// The gateway's address in each subnet; the first address where none is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    /// Addresses and CIDRs that no pod gets unless it asks for one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_ranges: Vec<String>,
    /// How far its packets get.
    #[serde(default)]
    pub reach: Reach,
    /// The physical network, with reach `Localnet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub localnet: Option<Localnet>,
    /// Networks that it reaches, as NAME or NAMESPACE/NAME, if they list it as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// MTU of the pods' interfaces in bytes; the cluster's where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// First two bytes of MAC addresses that follow from pods' addresses, such as `0a:11`; `0a:58` where none are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_prefix: Option<String>,
    /// How addresses are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
}

/// A field that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The field, such as `spec.subnets[0]`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl SpecError {
    pub(super) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

impl VirtualNetworkSpec {
    /// Whether addresses of pods of StatefulSets outlive the pods.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.ipam.is_some_and(|ipam| ipam.lifecycle == Some(Lifecycle::Persistent))
    }

    /// Reads the value of `spec`.
    ///
    /// # Errors
    /// A field is missing, unknown or of another type.
    pub fn read(value: &Value) -> Result<Self, SpecError> {
        serde_path_to_error::deserialize(value).map_err(|error| {
            // `.` is the whole value; `?` marks a part that the parser could not name.
            let field = match quoted(error.path()) {
                whole if matches!(whole.as_str(), "." | "?") => "spec".to_owned(),
                field => format!("spec.{field}"),
            };
            SpecError::new(field, quoted(error.inner()))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_left_out_has_a_default() {
        let spec = VirtualNetworkSpec::read(&json!({"subnets": ["172.16.24.0/24"]})).unwrap();
        assert_eq!((spec.scope, spec.reach, spec.mtu), (Scope::Namespace, Reach::Isolated, None));
        let all = json!({"scope": "Cluster", "subnets": ["172.16.24.0/24"], "gateways": ["172.16.24.1"],
            "excludedRanges": ["172.16.24.128/25"], "reach": "Localnet", "mtu": 1300,
            "localnet": {"physicalNetwork": "dc", "vlan": 100}, "peers": ["red", "shop/blue"],
            "macPrefix": "0a:11", "ipam": {"lifecycle": "Persistent"}});
        assert_eq!(serde_json::to_value(VirtualNetworkSpec::read(&all).unwrap()).unwrap(), all);
    }

    #[test]
    fn names_are_read_in_any_case() {
        assert_eq!("clusterrouter".parse(), Ok(Reach::ClusterRouter));
        assert_eq!("Cluster".parse(), Ok(Scope::Cluster));
        let error = "everywhere".parse::<Reach>().unwrap_err();
        assert_eq!(error, "`everywhere` is no reach; supported: Isolated, ClusterRouter, Outside, Localnet");
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (value, field, word) in [
            (json!({}), "spec", "`subnets`"),
            (json!({"subnets": [7]}), "spec.subnets[0]", "string"),
            (json!({"subnets": [], "reach": "Everywhere"}), "spec.reach", "`Isolated`"),
            (json!({"subnets": [], "vlan": 7}), "spec", "`vlan`"),
            (json!({"subnets": [], "localnet": {"vlan": 7}}), "spec.localnet", "`physicalNetwork`"),
            (
                json!({"subnets": [], "localnet": {"physicalNetwork": "dc", "vlan": -1}}),
                "spec.localnet.vlan",
                "u16",
            ),
            (json!(null), "spec", "null"),
        ] {
            let error = VirtualNetworkSpec::read(&value).unwrap_err();
            assert!(error.field.starts_with(field) && error.to_string().contains(word), "{value}: {error}");
        }
    }
}
