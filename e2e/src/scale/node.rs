//! Node objects without machines, with the annotations that an agent would have written.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use api::annotation::{self, FamilyAddresses, GatewayConfig, GatewayConfigs, GatewayMode};
use api::ovn_name;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use testbed::cluster::config::{
    EXT_IP, MASQUERADE_SUBNET, MASQUERADE_SUBNET_6, UNDERLAY_PREFIX, underlay_mac,
};

/// As many as have an address of their own on the underlay.
pub(super) const MOST: usize = 1000;
/// The gateway bridge.
const BRIDGE: &str = "breth0";

/// `sim000`, `sim001`, ..
pub(crate) fn name(index: usize) -> String {
    format!("sim{index:03}")
}

/// On the underlay, beside the addresses of real hosts.
pub(super) fn address(index: usize) -> Result<Ipv4Addr> {
    ensure!(index < MOST, "at most {MOST} simulated nodes, not {}", index + 1);
    let (high, low) = (u8::try_from(16 + index / 250)?, u8::try_from(1 + index % 250)?);
    let [a, b, ..] = EXT_IP.octets();
    Ok(Ipv4Addr::new(a, b, high, low))
}

/// The object, as whoever makes a machine a node makes it.
pub(super) fn object(index: usize) -> Result<Node> {
    let name = name(index);
    Ok(serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": format!("zone-{}", index % 3),
        }},
        // No condition Ready: no scheduler uses the node, and no heartbeat is expected.
        "status": {"addresses": [{"type": "InternalIP", "address": address(index)?}]},
    }))?)
}

/// What its agent would write on it.
pub(super) fn annotations(index: usize) -> Result<BTreeMap<&'static str, String>> {
    let (name, ip) = (name(index), address(index)?);
    let net = IpNet::new(ip.into(), UNDERLAY_PREFIX)?;
    let gateway = GatewayConfig {
        mode: GatewayMode::Shared,
        bridge_id: BRIDGE.to_owned(),
        interface_id: ovn_name::localnet_port(BRIDGE, &name),
        mac_address: underlay_mac(ip).parse()?,
        ip_addresses: vec![net],
        ip_address: Some(net),
        next_hops: vec![EXT_IP.into()],
        next_hop: Some(EXT_IP.into()),
        node_port_enable: "true".to_owned(),
        vlan_id: "0".to_owned(),
        exgw_interface_id: None,
        exgw_mac_address: None,
        exgw_ip_addresses: Vec::new(),
        exgw_ip_address: None,
    };
    let primary = FamilyAddresses { ipv4: Some(net), ipv6: None };
    let masquerade =
        FamilyAddresses { ipv4: Some(MASQUERADE_SUBNET.parse()?), ipv6: Some(MASQUERADE_SUBNET_6.parse()?) };
    Ok(BTreeMap::from([
        (annotation::ZONE_NAME, annotation::GLOBAL_ZONE.to_owned()),
        (annotation::NODE_ENCAP_IPS, annotation::encode(&[ip])),
        (annotation::NODE_CHASSIS_ID, format!("00000000-0000-4000-9000-{index:012}")),
        (annotation::L3_GATEWAY_CONFIG, GatewayConfigs::with_default(gateway)),
        (annotation::HOST_CIDRS, annotation::encode(&[net])),
        (annotation::NODE_PRIMARY_IFADDR, annotation::encode(&primary)),
        (annotation::NODE_MASQUERADE_SUBNET, annotation::encode(&masquerade)),
    ]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use testbed::cluster::config::is_underlay;

    #[test]
    fn no_two_nodes_have_one_address_and_none_has_that_of_a_real_host() {
        let all: BTreeSet<_> = (0..MOST).map(|i| address(i).unwrap()).collect();
        assert_eq!(all.len(), MOST);
        assert!(all.iter().all(|ip| is_underlay((*ip).into()) && ip.octets()[2] != 0));
        assert!(address(MOST).is_err());
    }

    #[test]
    fn a_node_carries_what_its_agent_would_write() {
        let annotations = annotations(7).unwrap();
        assert_eq!(annotations[annotation::HOST_CIDRS], r#"["172.18.16.8/16"]"#);
        let gateway = GatewayConfigs::default_of(&annotations[annotation::L3_GATEWAY_CONFIG]).unwrap();
        assert_eq!(gateway.interface_id, "breth0_sim007");
        assert_eq!(gateway.mac_address.to_string(), "02:42:ac:12:10:08");
    }
}
