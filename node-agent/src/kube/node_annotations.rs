//! Annotations that the agent writes to its Node object: chassis, gateway and addresses. Values are byte-identical to those of
//! ovn-kubernetes; a patch is sent only when a value differs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Context;
use api::addr::{self, Family};
use api::annotation::{self, FamilyAddresses, GatewayConfig, GatewayConfigs, GatewayMode};
use api::{MacAddr, ovn_name};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::kernel::link::{LinkError, Netlink};
use crate::kube::client::in_time;

/// Annotations that a node does not have without a reason.
const OPTIONAL: [&str; 2] = [annotation::USERSPACE_TSO, annotation::PHYSICAL_NETWORKS];

/// Content of the annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the Node object.
    pub node: String,
    /// OVN chassis name.
    pub chassis: String,
    /// Address of the tunnel endpoint.
    pub encap_ip: IpAddr,
    /// Name of the gateway bridge.
    pub bridge: String,
    /// MAC address of the gateway bridge.
    pub mac: MacAddr,
    /// Addresses of the gateway bridge, one per IP family.
    pub addresses: Vec<IpNet>,
    /// Default gateways of the physical network.
    pub next_hops: Vec<IpAddr>,
    /// Subnets of the masquerade addresses.
    pub masquerade: Vec<IpNet>,
    /// All addresses of the node, except masquerade addresses and the management port.
    pub host_cidrs: BTreeSet<IpNet>,
    /// Way by which pods reach the outside.
    pub gateway_mode: GatewayMode,
    /// Whether the node serves node ports.
    pub node_port: bool,
    /// `userspace-tso-enable` of OVS's userspace datapath is on.
    pub userspace_tso: bool,
    /// Physical networks that the node has a bridge for, beside that of its gateway.
    pub physical_networks: Vec<String>,
    /// The node's second uplink.
    pub second_uplink: Option<SecondUplinkFacts>,
}

/// The second uplink as the cluster is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondUplinkFacts {
    /// Name of its bridge.
    pub bridge: String,
    /// MAC address of its bridge.
    pub mac: MacAddr,
    /// Addresses of its bridge, one per IP family.
    pub addresses: Vec<IpNet>,
}

/// Formats the annotations: key to value.
pub fn annotations(facts: &NodeFacts) -> BTreeMap<&'static str, String> {
    let second = facts.second_uplink.as_ref();
    let gateway = GatewayConfig {
        mode: facts.gateway_mode,
        bridge_id: facts.bridge.clone(),
        interface_id: ovn_name::localnet_port(&facts.bridge, &facts.node),
        mac_address: facts.mac,
        ip_addresses: facts.addresses.clone(),
        ip_address: only(&facts.addresses),
        next_hops: facts.next_hops.clone(),
        next_hop: only(&facts.next_hops),
        node_port_enable: facts.node_port.to_string(),
        vlan_id: "0".to_owned(),
        exgw_interface_id: second.map(|second| ovn_name::localnet_port(&second.bridge, &facts.node)),
        exgw_mac_address: second.map(|second| second.mac),
        exgw_ip_addresses: second.map(|second| second.addresses.clone()).unwrap_or_default(),
        exgw_ip_address: second.and_then(|second| only(&second.addresses)),
    };
    // Readers expect both families, even in single-stack clusters.
    let masquerade =
        addr::with_defaults(&facts.masquerade, [Family::V4, Family::V6], &addr::DEFAULT_MASQUERADE);
    let mut all = BTreeMap::from([
        (annotation::ZONE_NAME, annotation::GLOBAL_ZONE.to_owned()),
        (annotation::NODE_ENCAP_IPS, annotation::encode(&[facts.encap_ip])),
        (annotation::NODE_CHASSIS_ID, facts.chassis.clone()),
        (annotation::L3_GATEWAY_CONFIG, GatewayConfigs::with_default(gateway)),
        (annotation::HOST_CIDRS, annotation::encode(&facts.host_cidrs)),
        (annotation::NODE_PRIMARY_IFADDR, annotation::encode(&by_family(&facts.addresses))),
        (annotation::NODE_MASQUERADE_SUBNET, annotation::encode(&by_family(&masquerade))),
    ]);
    if facts.userspace_tso {
        all.insert(annotation::USERSPACE_TSO, "true".to_owned());
    }
    if !facts.physical_networks.is_empty() {
        all.insert(annotation::PHYSICAL_NETWORKS, annotation::encode(&facts.physical_networks));
    }
    all
}

/// The only element, for older readers.
fn only<T: Copy>(list: &[T]) -> Option<T> {
    match list {
        [one] => Some(*one),
        _ => None,
    }
}

fn by_family(nets: &[IpNet]) -> FamilyAddresses {
    let of = |family| nets.iter().copied().find(|net| Family::of_net(net) == family);
    FamilyAddresses { ipv4: of(Family::V4), ipv6: of(Family::V6) }
}

/// Annotations that differ from those of the object; `None`: to be removed.
pub fn differing(
    wanted: &BTreeMap<&'static str, String>,
    current: Option<&BTreeMap<String, String>>,
) -> BTreeMap<&'static str, Option<String>> {
    let same = |key: &str, value: &String| current.and_then(|c| c.get(key)) == Some(value);
    let mut changes: BTreeMap<_, _> =
        wanted.iter().filter(|(k, v)| !same(k, v)).map(|(k, v)| (*k, Some(v.clone()))).collect();
    let is_there = |key: &str| current.is_some_and(|c| c.contains_key(key));
    let unwanted = OPTIONAL.into_iter().filter(|key| !wanted.contains_key(key) && is_there(key));
    changes.extend(unwanted.map(|key| (key, None)));
    changes
}

/// Patches annotations that differ from those of the Node object when last read. Returns true when a patch was sent.
///
/// # Errors
/// The API server rejects the patch or does not respond.
pub async fn publish(
    nodes: &Api<Node>,
    facts: &NodeFacts,
    current: Option<&BTreeMap<String, String>>,
) -> anyhow::Result<bool> {
    let changes = differing(&annotations(facts), current);
    if changes.is_empty() {
        return Ok(false);
    }
    let patch = json!({ "metadata": { "annotations": changes } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    in_time(nodes.patch_metadata(&facts.node, &params, &patch))
        .await
        .with_context(|| format!("annotations of node {}", facts.node))?;
    Ok(true)
}

/// Addresses of the node for use by others: global addresses of all interfaces except loopback, the management port and those in
/// `hidden`.
///
/// # Errors
/// Interfaces or addresses could not be listed.
pub async fn host_cidrs(netlink: &Netlink, hidden: &[IpNet]) -> Result<BTreeSet<IpNet>, LinkError> {
    let mut found = BTreeSet::new();
    for link in netlink.list().await? {
        if link.name == "lo" || link.name == ovn_name::MANAGEMENT_INTERFACE {
            continue;
        }
        for saved in netlink.saved_addresses(link.index, &link.name).await? {
            let ip = saved.address.addr();
            if !hidden.iter().any(|net| net.contains(&ip)) && !is_link_local(ip) {
                found.insert(saved.address);
            }
        }
    }
    Ok(found)
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NodeFacts {
        NodeFacts {
            node: "n1".to_owned(),
            chassis: "00000000-0000-4000-8000-000000000001".to_owned(),
            encap_ip: "172.18.0.2".parse().unwrap(),
            bridge: "breth0".to_owned(),
            mac: "02:42:ac:12:00:02".parse().unwrap(),
            addresses: vec!["172.18.0.2/16".parse().unwrap()],
            next_hops: vec!["172.18.0.1".parse().unwrap()],
            masquerade: vec!["169.254.169.0/29".parse().unwrap()],
            host_cidrs: BTreeSet::from(["172.18.0.2/16".parse().unwrap()]),
            gateway_mode: GatewayMode::Shared,
            node_port: true,
            userspace_tso: false,
            physical_networks: Vec::new(),
            second_uplink: None,
        }
    }

    #[test]
    fn annotations_are_byte_for_byte_those_of_the_reference() {
        let reference = BTreeMap::from([
            ("k8s.ovn.org/host-cidrs", r#"["172.18.0.2/16"]"#),
            (
                "k8s.ovn.org/l3-gateway-config",
                r#"{"default":{"mode":"shared","bridge-id":"breth0","interface-id":"breth0_n1","mac-address":"02:42:ac:12:00:02","ip-addresses":["172.18.0.2/16"],"ip-address":"172.18.0.2/16","next-hops":["172.18.0.1"],"next-hop":"172.18.0.1","node-port-enable":"true","vlan-id":"0"}}"#,
            ),
            ("k8s.ovn.org/node-chassis-id", "00000000-0000-4000-8000-000000000001"),
            ("k8s.ovn.org/node-encap-ips", r#"["172.18.0.2"]"#),
            ("k8s.ovn.org/node-masquerade-subnet", r#"{"ipv4":"169.254.169.0/29","ipv6":"fd69::/125"}"#),
            ("k8s.ovn.org/node-primary-ifaddr", r#"{"ipv4":"172.18.0.2/16"}"#),
            ("k8s.ovn.org/zone-name", "global"),
        ]);
        let ours = annotations(&facts());
        let ours: BTreeMap<&str, &str> = ours.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(ours, reference);
    }

    #[test]
    fn two_families_are_announced_as_lists_and_without_the_singular() {
        let mut facts = facts();
        facts.addresses.push("fd00:172:18::2/64".parse().unwrap());
        facts.next_hops.push("fd00:172:18::1".parse().unwrap());
        facts.masquerade.push("fd69::/112".parse().unwrap());
        let ours = annotations(&facts);
        let gateway = GatewayConfigs::default_of(&ours[annotation::L3_GATEWAY_CONFIG]).unwrap();
        assert_eq!((gateway.ip_addresses.len(), gateway.next_hops.len()), (2, 2));
        assert_eq!((gateway.ip_address, gateway.next_hop), (None, None));
        assert_eq!(
            ours[annotation::NODE_PRIMARY_IFADDR],
            r#"{"ipv4":"172.18.0.2/16","ipv6":"fd00:172:18::2/64"}"#
        );
        assert_eq!(
            ours[annotation::NODE_MASQUERADE_SUBNET],
            r#"{"ipv4":"169.254.169.0/29","ipv6":"fd69::/112"}"#
        );
    }

    #[test]
    fn only_what_differs_is_written() {
        let wanted = annotations(&facts());
        let mut current: BTreeMap<String, String> =
            wanted.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        assert!(differing(&wanted, Some(&current)).is_empty());
        current.insert(annotation::HOST_CIDRS.to_owned(), "[]".to_owned());
        assert_eq!(
            differing(&wanted, Some(&current)).into_keys().collect::<Vec<_>>(),
            [annotation::HOST_CIDRS]
        );
        assert_eq!(differing(&wanted, None).len(), wanted.len());
    }

    #[test]
    fn a_node_without_node_ports_says_so() {
        let config = annotations(&NodeFacts { node_port: false, ..facts() });
        assert!(config[annotation::L3_GATEWAY_CONFIG].contains(r#""node-port-enable":"false""#));
    }

    #[test]
    fn userspace_segmentation_is_told_and_taken_back() {
        let with = annotations(&NodeFacts { userspace_tso: true, ..facts() });
        assert_eq!(with.get(annotation::USERSPACE_TSO).map(String::as_str), Some("true"));
        let without = annotations(&facts());
        assert!(!without.contains_key(annotation::USERSPACE_TSO));
        let current: BTreeMap<String, String> =
            with.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        assert_eq!(differing(&without, Some(&current)), BTreeMap::from([(annotation::USERSPACE_TSO, None)]));
    }

    #[test]
    fn the_second_uplink_is_told_beside_the_gateway() {
        let second = SecondUplinkFacts {
            bridge: "breth1".to_owned(),
            mac: "02:42:ac:13:00:02".parse().unwrap(),
            addresses: vec!["172.19.0.2/16".parse().unwrap()],
        };
        let with = annotations(&NodeFacts { second_uplink: Some(second), ..facts() });
        let told = &with[annotation::L3_GATEWAY_CONFIG];
        let wanted = r#""exgw-interface-id":"breth1_n1","exgw-mac-address":"02:42:ac:13:00:02","exgw-ip-addresses":["172.19.0.2/16"],"exgw-ip-address":"172.19.0.2/16""#;
        assert!(told.contains(wanted), "{told}");
        assert!(!annotations(&facts())[annotation::L3_GATEWAY_CONFIG].contains("exgw"));
    }

    #[test]
    fn physical_networks_are_told_and_taken_back() {
        let names = vec!["dc".to_owned(), "storage".to_owned()];
        let with = annotations(&NodeFacts { physical_networks: names, ..facts() });
        assert_eq!(with[annotation::PHYSICAL_NETWORKS], r#"["dc","storage"]"#);
        let current = with.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let changes = differing(&annotations(&facts()), Some(&current));
        assert_eq!(changes, BTreeMap::from([(annotation::PHYSICAL_NETWORKS, None)]));
    }
}
