//! Annotations that the controller and the node agent exchange through Node and Pod objects. Keys and values are the same as in
//! ovn-kubernetes; a value that cannot be read gives an error that names the key and the field.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::MacAddr;
use crate::quote::quoted;

/// Prefix of the keys and condition types that are Slipstream's own.
pub const OWN_PREFIX: &str = "slipstream.dev/";
/// Key of the pod's addresses: written by the controller, read by the node agent. See [`PodNetworks`].
pub const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";
/// Key of the node's pod ranges. See [`NodeSubnets`].
pub const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";
/// Key of the node's number (decimal text, from 2), from which its join address is derived.
pub const NODE_ID: &str = "k8s.ovn.org/node-id";
/// Key of the chassis name (the node's OVS `system-id`).
pub const NODE_CHASSIS_ID: &str = "k8s.ovn.org/node-chassis-id";
/// Key of the gateway configuration. See [`GatewayConfigs`].
pub const L3_GATEWAY_CONFIG: &str = "k8s.ovn.org/l3-gateway-config";
/// Key on a Namespace with the external gateways of its pods: IP addresses, separated by commas.
pub const ROUTING_EXTERNAL_GWS: &str = "k8s.ovn.org/routing-external-gws";
/// Key on a Namespace, of any value: whether its external gateways are alive is found out by BFD (RFC 5880).
pub const BFD_ENABLED: &str = "k8s.ovn.org/bfd-enabled";
/// Key of the node's tunnel addresses: a JSON list of IP addresses.
pub const NODE_ENCAP_IPS: &str = "k8s.ovn.org/node-encap-ips";
/// Key of all the node's addresses with prefix length: a JSON list.
pub const HOST_CIDRS: &str = "k8s.ovn.org/host-cidrs";
/// Key of the node's main address. See [`FamilyAddresses`].
pub const NODE_PRIMARY_IFADDR: &str = "k8s.ovn.org/node-primary-ifaddr";
/// Key of the node's masquerade subnets. See [`FamilyAddresses`].
pub const NODE_MASQUERADE_SUBNET: &str = "k8s.ovn.org/node-masquerade-subnet";
/// Key that the agent writes, with the value `true`, while OVS's userspace datapath segments packets itself
/// (`other_config:userspace-tso-enable`). That datapath compares the length of a packet before segmentation with a limit
/// (`check_pkt_larger`), so the controller sets no `gateway_mtu` for such a node.
pub const USERSPACE_TSO: &str = "slipstream.dev/userspace-tso";
/// Key that the agent writes: a JSON list of the physical networks for which the node has a bridge of OVS (`ovn-bridge-mappings`), beside
/// that of its gateway. Not written while there are none.
pub const PHYSICAL_NETWORKS: &str = "slipstream.dev/physical-networks";
/// The most physical networks of a node.
pub const MAX_PHYSICAL_NETWORKS: usize = 64;
/// Key of the controller's cluster network flags, on every Node. An agent compares them with its own flags. See
/// [`ClusterNetwork`].
pub const CLUSTER_NETWORK: &str = "slipstream.dev/cluster-network";
/// Key on a pod that requests its path: `ebpf` or `ovs`. May be changed at any time.
pub const POD_PATH: &str = "slipstream.dev/path";
/// Key of the zone the node belongs to; `global` with one database for all nodes.
pub const ZONE_NAME: &str = "k8s.ovn.org/zone-name";
/// The only zone name with one database for all nodes.
pub const GLOBAL_ZONE: &str = "global";
/// Name of the cluster network inside annotation maps.
pub const DEFAULT_NETWORK: &str = "default";
/// Label of a Node with the zone that it is in (Kubernetes, well-known labels).
pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
/// Key on a mirror pod with the UID of its static pod, which the kubelet passes to the runtime (Kubernetes, well-known annotations).
pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// Key on a pod for the `bandwidth` plugin: limit of the pod's egress traffic (Kubernetes, well-known annotations).
pub const EGRESS_BANDWIDTH: &str = "kubernetes.io/egress-bandwidth";
/// Type of the Node condition that names the CNI configuration by which the container runtime connects pods.
pub const CNI_CONFIGURATION_IN_USE: &str = "slipstream.dev/CNIConfigurationInUse";
/// Role of the cluster network in a pod's annotation.
pub const ROLE_PRIMARY: &str = "primary";
/// Role of other networks in a pod's annotation.
pub const ROLE_SECONDARY: &str = "secondary";

/// An annotation's value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// The value is not the JSON it should be.
    #[error("annotation {key}: {problem}; value: {value}")]
    Malformed {
        /// The annotation's key.
        key: &'static str,
        /// The problem, with field and position.
        problem: String,
        /// The value as found.
        value: String,
    },
    /// The map has no entry for the cluster network.
    #[error("annotation {key}: no entry `default`; value: {value}")]
    NoDefault {
        /// The annotation's key.
        key: &'static str,
        /// The value as found.
        value: String,
    },
}

/// A pod's addresses on one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNetwork {
    /// Addresses with the prefix length of the node's range.
    pub ip_addresses: Vec<IpNet>,
    /// The pod's MAC address.
    pub mac_address: MacAddr,
    /// Default gateways, one for each family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateway_ips: Vec<IpAddr>,
    /// Further routes inside the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<PodRoute>,
    /// The address again, if there is exactly one (for older readers).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<IpNet>,
    /// The gateway again, if there is exactly one (for older readers).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_ip: Option<IpAddr>,
    /// `primary` for the cluster network, `secondary` for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Name of the pod's interface on this network; none for the cluster network, whose interface the runtime names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// MTU of the pod's interface in bytes; none for the cluster network, whose MTU is a flag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The agent asks on the network whether another host uses one of the addresses before the pod has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detect_duplicates: bool,
}

/// A route inside a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRoute {
    /// Destination prefix.
    pub dest: IpNet,
    /// Next hop.
    #[serde(rename = "nextHop")]
    pub next_hop: IpAddr,
}

/// Value of [`POD_NETWORKS`]: network name to addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodNetworks(pub BTreeMap<String, PodNetwork>);

/// Value of [`NODE_SUBNETS`]: network name to pod ranges of the node. Older versions of ovn-kubernetes wrote a single range
/// where there is a list now; both are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSubnets(pub BTreeMap<String, Ranges>);

/// Ranges, written as a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Ranges(pub Vec<IpNet>);

impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Reads one range, or a list of them. It is not an untagged enum, as errors of those do not name the problem.
struct OneOrMany;

impl<'de> Visitor<'de> for OneOrMany {
    type Value = Ranges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of CIDRs such as [\"10.244.1.0/24\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Ranges, E> {
        text.parse().map(|net| Ranges(vec![net])).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Ranges, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Ranges)
    }
}

/// Way by which a node's pods reach the outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum GatewayMode {
    /// By the node's gateway router, which shares the uplink with the node.
    #[default]
    Shared,
    /// By the node's own network stack, with its routes and its firewall.
    Local,
}

/// How a node reaches the outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayConfig {
    /// Way of the node's pods to the outside.
    pub mode: GatewayMode,
    /// The gateway bridge, such as `breth0`.
    #[serde(rename = "bridge-id")]
    pub bridge_id: String,
    /// The localnet port of the external switch.
    #[serde(rename = "interface-id")]
    pub interface_id: String,
    /// MAC address of the bridge, shared with the gateway router.
    #[serde(rename = "mac-address")]
    pub mac_address: MacAddr,
    /// The node's addresses on the bridge, shared with the gateway router.
    #[serde(rename = "ip-addresses")]
    pub ip_addresses: Vec<IpNet>,
    /// The address again, if there is exactly one (for older readers).
    #[serde(rename = "ip-address", default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<IpNet>,
    /// Default gateways of the physical network.
    #[serde(rename = "next-hops")]
    pub next_hops: Vec<IpAddr>,
    /// The gateway again, if there is exactly one (for older readers).
    #[serde(rename = "next-hop", default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// `"true"` when NodePorts are served on this node.
    #[serde(rename = "node-port-enable")]
    pub node_port_enable: String,
    /// VLAN of the physical network, `"0"` for none.
    #[serde(rename = "vlan-id")]
    pub vlan_id: String,
    /// Localnet port of the second uplink's external switch. See [`GatewayConfig::second_uplink`].
    #[serde(rename = "exgw-interface-id", default, skip_serializing_if = "Option::is_none")]
    pub exgw_interface_id: Option<String>,
    /// MAC address of the second uplink's bridge, shared with the gateway router.
    #[serde(rename = "exgw-mac-address", default, skip_serializing_if = "Option::is_none")]
    pub exgw_mac_address: Option<MacAddr>,
    /// The node's addresses on the second uplink's bridge, shared with the gateway router.
    #[serde(rename = "exgw-ip-addresses", default, skip_serializing_if = "Vec::is_empty")]
    pub exgw_ip_addresses: Vec<IpNet>,
    /// The address again, if there is exactly one (for older readers).
    #[serde(rename = "exgw-ip-address", default, skip_serializing_if = "Option::is_none")]
    pub exgw_ip_address: Option<IpNet>,
}

/// A node's second uplink, towards external gateways of pods (`exgw` of ovn-kubernetes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecondUplink<'a> {
    /// The localnet port of its external switch.
    pub interface_id: &'a str,
    /// MAC address of its bridge, shared with the gateway router.
    pub mac: MacAddr,
    /// The node's addresses on its bridge, shared with the gateway router.
    pub addresses: &'a [IpNet],
}

impl GatewayConfig {
    /// The node's second uplink, if it has one that has an address.
    pub fn second_uplink(&self) -> Option<SecondUplink<'_>> {
        let addresses = self.exgw_ip_addresses.as_slice();
        let (interface_id, mac) = (self.exgw_interface_id.as_deref()?, self.exgw_mac_address?);
        (!addresses.is_empty()).then_some(SecondUplink { interface_id, mac, addresses })
    }
}

/// Value of [`L3_GATEWAY_CONFIG`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GatewayConfigs(pub BTreeMap<String, GatewayConfig>);

/// One prefix for each address family ([`NODE_PRIMARY_IFADDR`], [`NODE_MASQUERADE_SUBNET`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FamilyAddresses {
    /// IPv4 address and prefix length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<IpNet>,
    /// IPv6 address and prefix length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<IpNet>,
}

/// Value of [`CLUSTER_NETWORK`]: the flags that must be equal for controller and agents. Ranges derived from others, such as the
/// default masquerade range of a family, are included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNetwork {
    /// Pod ranges, each with the prefix length of a node's share, such as `10.244.0.0/16/24`.
    pub cluster_subnets: Vec<String>,
    /// Service ranges.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<IpNet>,
    /// Ranges of the join switch, one for each family of pods.
    pub join_subnets: Vec<IpNet>,
    /// Masquerade ranges, one for each family of pods.
    pub masquerade_subnets: Vec<IpNet>,
    /// MTU of pod interfaces, in bytes.
    pub mtu: u32,
    /// Whether pods have the cluster's network at all, or another plugin connects them.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub default_network: bool,
}

/// What those mean that do not say it.
fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_yes(value: &bool) -> bool {
    *value
}

/// Reads the JSON value of annotation `key`.
///
/// # Errors
/// The value is no JSON of this type; the error names the key and the field.
pub fn decode<T: DeserializeOwned>(key: &'static str, value: &str) -> Result<T, AnnotationError> {
    let malformed = |problem| AnnotationError::Malformed { key, problem, value: quoted(value) };
    let mut json = serde_json::Deserializer::from_str(value);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // `.` is the whole value; `?` marks a part that the parser could not name.
        match error.path().to_string() {
            whole if matches!(whole.as_str(), "." | "?") => malformed(error.inner().to_string()),
            field => malformed(format!("`{field}`: {}", error.inner())),
        }
    })?;
    json.end().map_err(|error| malformed(error.to_string()))?;
    Ok(read)
}

/// Writes an annotation's value as compact JSON.
pub fn encode<T: Serialize>(value: &T) -> String {
    // These types contain only text, numbers and maps with string keys, which can always be encoded as JSON.
    serde_json::to_string(value).unwrap_or_default()
}

impl PodNetworks {
    /// Reads the cluster network's entry from [`POD_NETWORKS`].
    ///
    /// # Errors
    /// The value cannot be read, or has no entry `default` with an address.
    pub fn default_of(value: &str) -> Result<PodNetwork, AnnotationError> {
        let mut all: Self = decode(POD_NETWORKS, value)?;
        let found = all.0.remove(DEFAULT_NETWORK);
        Self::checked(found.ok_or_else(|| Self::no_default(value))?, value)
    }

    fn checked(network: PodNetwork, value: &str) -> Result<PodNetwork, AnnotationError> {
        if network.ip_addresses.is_empty() {
            return Err(AnnotationError::Malformed {
                key: POD_NETWORKS,
                problem: "`default.ip_addresses` is empty; must have at least one address".to_owned(),
                value: quoted(value),
            });
        }
        Ok(network)
    }

    /// Reads all entries of [`POD_NETWORKS`]: the cluster network's, and those of other networks by their keys, sorted by key.
    /// Each of the others names the pod's interface.
    ///
    /// # Errors
    /// Fails as [`Self::default_of`], or another entry names no interface.
    pub fn all_of(value: &str) -> Result<(PodNetwork, BTreeMap<String, PodNetwork>), AnnotationError> {
        let (default, others) = Self::read(value)?;
        let default = default.ok_or_else(|| Self::no_default(value))?;
        Ok((default, others))
    }

    /// What [`Self::all_of`] says where there is no entry of the cluster network.
    pub fn no_default(value: &str) -> AnnotationError {
        AnnotationError::NoDefault { key: POD_NETWORKS, value: quoted(value) }
    }

    /// Entries of the annotation: that of the cluster's network, `None` where another plugin has it, and those of other networks by
    /// their keys.
    ///
    /// # Errors
    /// The value is not of the annotation's form, the entry of the cluster's network has no address, or another entry names no interface.
    pub fn read(value: &str) -> Result<(Option<PodNetwork>, BTreeMap<String, PodNetwork>), AnnotationError> {
        let mut all: Self = decode(POD_NETWORKS, value)?;
        let default =
            all.0.remove(DEFAULT_NETWORK).map(|network| Self::checked(network, value)).transpose()?;
        for (key, network) in &all.0 {
            if network.interface.as_ref().is_none_or(String::is_empty) {
                return Err(AnnotationError::Malformed {
                    key: POD_NETWORKS,
                    problem: format!("`{key}.interface` is missing; must be the name of an interface"),
                    value: quoted(value),
                });
            }
        }
        Ok((default, all.0))
    }

    /// The value for a pod that is only on the cluster network.
    pub fn with_default(network: PodNetwork) -> String {
        encode(&Self(BTreeMap::from([(DEFAULT_NETWORK.to_owned(), network)])))
    }
}

impl NodeSubnets {
    /// Reads the cluster network's ranges from [`NODE_SUBNETS`].
    ///
    /// # Errors
    /// The value cannot be read, or has no entry `default`.
    pub fn default_of(value: &str) -> Result<Vec<IpNet>, AnnotationError> {
        let mut all: Self = decode(NODE_SUBNETS, value)?;
        all.0
            .remove(DEFAULT_NETWORK)
            .map(|ranges| ranges.0)
            .filter(|nets| !nets.is_empty())
            .ok_or_else(|| AnnotationError::NoDefault { key: NODE_SUBNETS, value: quoted(value) })
    }

    /// Whether the cluster network's range has the format of older versions.
    pub fn is_outdated(value: &str) -> bool {
        serde_json::from_str::<serde_json::Value>(value).is_ok_and(|value| value[DEFAULT_NETWORK].is_string())
    }

    /// The value for a node with these ranges of the cluster network.
    pub fn with_default(nets: Vec<IpNet>) -> String {
        encode(&Self(BTreeMap::from([(DEFAULT_NETWORK.to_owned(), Ranges(nets))])))
    }
}

impl GatewayConfigs {
    /// Reads the cluster network's gateway from [`L3_GATEWAY_CONFIG`].
    ///
    /// # Errors
    /// The value cannot be read, or has no entry `default`.
    pub fn default_of(value: &str) -> Result<GatewayConfig, AnnotationError> {
        let mut all: Self = decode(L3_GATEWAY_CONFIG, value)?;
        all.0
            .remove(DEFAULT_NETWORK)
            .ok_or_else(|| AnnotationError::NoDefault { key: L3_GATEWAY_CONFIG, value: quoted(value) })
    }

    /// The value for a node with this gateway.
    pub fn with_default(config: GatewayConfig) -> String {
        encode(&Self(BTreeMap::from([(DEFAULT_NETWORK.to_owned(), config)])))
    }
}

impl ClusterNetwork {
    /// Reads [`CLUSTER_NETWORK`].
    ///
    /// # Errors
    /// The value cannot be read.
    pub fn read(value: &str) -> Result<Self, AnnotationError> {
        decode(CLUSTER_NETWORK, value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POD: &str = r#"{"default":{"ip_addresses":["10.244.1.3/24"],"mac_address":"0a:58:0a:f4:01:03","gateway_ips":["10.244.1.1"],"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.1.1"}],"ip_address":"10.244.1.3/24","gateway_ip":"10.244.1.1","role":"primary"}}"#;
    const GATEWAY: &str = r#"{"default":{"mode":"shared","bridge-id":"breth0","interface-id":"breth0_n1","mac-address":"02:42:ac:12:00:02","ip-addresses":["172.18.0.2/16"],"ip-address":"172.18.0.2/16","next-hops":["172.18.0.1"],"next-hop":"172.18.0.1","node-port-enable":"true","vlan-id":"0"}}"#;

    #[test]
    fn pod_networks_are_written_byte_for_byte_as_read() {
        assert_eq!(PodNetworks::with_default(PodNetworks::default_of(POD).unwrap()), POD);
    }

    #[test]
    fn entries_of_other_networks_name_the_interface() {
        let net = r#"{"ip_addresses":["172.16.24.3/24"],"mac_address":"0a:58:ac:10:18:03","role":"secondary","interface":"net1","mtu":1400}"#;
        let value = POD.replacen('{', &format!(r#"{{"shop/blue":{net},"#), 1);
        let (default, others) = PodNetworks::all_of(&value).unwrap();
        assert_eq!(PodNetworks::with_default(default), POD);
        assert_eq!(encode(&others["shop/blue"]), net);
        let text = PodNetworks::all_of(&value.replace(r#","interface":"net1""#, "")).unwrap_err().to_string();
        assert!(text.contains("`shop/blue.interface` is missing"), "{text}");
    }

    #[test]
    fn gateway_config_is_written_byte_for_byte_as_read() {
        assert_eq!(GatewayConfigs::with_default(GatewayConfigs::default_of(GATEWAY).unwrap()), GATEWAY);
    }

    #[test]
    fn the_clusters_network_is_written_byte_for_byte_as_read() {
        let value = r#"{"clusterSubnets":["10.244.0.0/16/24"],"serviceCIDRs":["10.96.0.0/12"],"joinSubnets":["100.64.0.0/16"],"masqueradeSubnets":["169.254.169.0/29"],"mtu":1400}"#;
        let read = ClusterNetwork::read(value).unwrap();
        assert_eq!((read.mtu, encode(&read).as_str()), (1400, value));
        let text =
            ClusterNetwork::read(&value.replace("10.96.0.0/12", "10.96.0.0/99")).unwrap_err().to_string();
        assert!(text.contains(CLUSTER_NETWORK) && text.contains("`serviceCIDRs[0]`: "), "{text}");
    }

    #[test]
    fn node_subnets_of_older_versions_are_read_and_known_as_such() {
        let old = r#"{"default":"10.244.1.0/24"}"#;
        let new = r#"{"default":["10.244.1.0/24"]}"#;
        assert_eq!(NodeSubnets::default_of(old), NodeSubnets::default_of(new));
        assert_eq!(NodeSubnets::with_default(NodeSubnets::default_of(old).unwrap()), new);
        assert_eq!((NodeSubnets::is_outdated(old), NodeSubnets::is_outdated(new)), (true, false));
        let text = NodeSubnets::default_of(r#"{"default":"10.244.1.0"}"#).unwrap_err().to_string();
        assert!(text.contains("`default`: "), "{text}");
        let text = NodeSubnets::default_of(r#"{"default":["10.244.1.0/24","x"]}"#).unwrap_err().to_string();
        assert!(text.contains("`default[1]`: "), "{text}");
        let text = NodeSubnets::default_of(r#"{"default":7}"#).unwrap_err().to_string();
        assert!(text.contains("a list of CIDRs such as"), "{text}");
    }

    #[test]
    fn an_error_names_the_key_the_problem_and_the_value() {
        let text = PodNetworks::default_of(r#"{"default":{"ip_addresses":["10.0.0.300/24"]}}"#)
            .unwrap_err()
            .to_string();
        assert!(text.contains(POD_NETWORKS) && text.contains("10.0.0.300"), "{text}");
        assert!(text.contains("`default.ip_addresses[0]`: "), "{text}");
        let text = PodNetworks::default_of("{}").unwrap_err().to_string();
        assert!(text.contains("no entry `default`"), "{text}");
        let text =
            PodNetworks::default_of(r#"{"default":{"ip_addresses":[],"mac_address":"0a:58:0a:f4:01:03"}}"#);
        assert!(text.unwrap_err().to_string().contains("at least one"));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in ".{0,300}") {
            let _ = PodNetworks::default_of(&text);
            let _ = NodeSubnets::default_of(&text);
            let _ = GatewayConfigs::default_of(&text);
            let _ = ClusterNetwork::read(&text);
        }
    }
}
