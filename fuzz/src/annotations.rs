//! Annotations of Nodes, Pods and Namespaces. A value that can be read must be equal after writing and reading it again.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use api::MacAddr;
use api::annotation::{
    AnnotationError, BFD_ENABLED, CLUSTER_NETWORK, ClusterNetwork, FamilyAddresses, GatewayConfigs,
    HOST_CIDRS, L3_GATEWAY_CONFIG, NODE_CHASSIS_ID, NODE_ENCAP_IPS, NODE_ID, NODE_MASQUERADE_SUBNET,
    NODE_PRIMARY_IFADDR, NODE_SUBNETS, NodeSubnets, POD_NETWORKS, POD_PATH, PodNetworks,
    ROUTING_EXTERNAL_GWS, USERSPACE_TSO, decode, encode,
};
use controller::index::convert;
use ipnet::IpNet;
use node_agent::kube::cluster_network;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Every key that a program reads.
const KEYS: [&str; 13] = [
    POD_NETWORKS,
    NODE_SUBNETS,
    NODE_ID,
    NODE_CHASSIS_ID,
    L3_GATEWAY_CONFIG,
    NODE_ENCAP_IPS,
    HOST_CIDRS,
    NODE_PRIMARY_IFADDR,
    USERSPACE_TSO,
    CLUSTER_NETWORK,
    POD_PATH,
    ROUTING_EXTERNAL_GWS,
    BFD_ENABLED,
];

/// Uses the text as the value of every annotation.
pub fn annotations(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    same_again::<PodNetworks>(POD_NETWORKS, text);
    same_again::<NodeSubnets>(NODE_SUBNETS, text);
    same_again::<GatewayConfigs>(L3_GATEWAY_CONFIG, text);
    same_again::<FamilyAddresses>(NODE_MASQUERADE_SUBNET, text);
    same_again::<ClusterNetwork>(CLUSTER_NETWORK, text);
    same_again::<Vec<IpAddr>>(NODE_ENCAP_IPS, text);
    same_again::<Vec<IpNet>>(HOST_CIDRS, text);
    same_again::<MacAddr>(POD_NETWORKS, text);
    default_networks(text);
    if let Ok(mac) = text.parse::<MacAddr>() {
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!(mac.to_string(), text.to_ascii_lowercase());
    }
    objects(text);
    agreement(text);
}

/// Reads, writes and reads again.
fn same_again<T: DeserializeOwned + Serialize + PartialEq + Debug>(key: &'static str, text: &str) {
    match decode::<T>(key, text) {
        Ok(first) => {
            let written = encode(&first);
            let second = decode::<T>(key, &written);
            assert_eq!(second.as_ref(), Ok(&first), "written as {written}");
            assert_eq!(encode(&first), written);
        }
        Err(error) => is_told(key, &error),
    }
}

/// An error must name the annotation and quote at most 200 characters of it.
fn is_told(key: &str, error: &AnnotationError) {
    let (AnnotationError::Malformed { value, .. } | AnnotationError::NoDefault { value, .. }) = error;
    assert!(value.chars().count() <= 201, "{} characters", value.chars().count());
    assert!(error.to_string().contains(key));
}

/// Reads only the entries of the cluster's network.
fn default_networks(text: &str) {
    match PodNetworks::default_of(text) {
        Ok(network) => {
            assert!(!network.ip_addresses.is_empty());
            assert_eq!(
                PodNetworks::default_of(&PodNetworks::with_default(network.clone())).as_ref(),
                Ok(&network)
            );
        }
        Err(error) => is_told(POD_NETWORKS, &error),
    }
    match NodeSubnets::default_of(text) {
        Ok(nets) => {
            assert!(!nets.is_empty());
            let written = NodeSubnets::with_default(nets.clone());
            assert!(!NodeSubnets::is_outdated(&written));
            assert_eq!(NodeSubnets::default_of(&written), Ok(nets));
        }
        Err(error) => is_told(NODE_SUBNETS, &error),
    }
    match GatewayConfigs::default_of(text) {
        Ok(config) => {
            assert_eq!(GatewayConfigs::default_of(&GatewayConfigs::with_default(config.clone())), Ok(config))
        }
        Err(error) => is_told(L3_GATEWAY_CONFIG, &error),
    }
}

/// A Node and a Pod with the text at every key: an unreadable annotation must not affect the others.
fn objects(text: &str) {
    let annotations: BTreeMap<&str, &str> = KEYS.into_iter().map(|key| (key, text)).collect();
    let node = json!({ "metadata": { "name": "n1", "annotations": annotations } });
    let node = convert::node(serde_json::from_value(node).unwrap()).unwrap();
    assert_eq!(node.name, "n1");
    assert_eq!(node.userspace_tso, text == "true");
    assert_eq!(node.cluster_network.as_deref(), Some(text));
    assert_eq!(node.chassis.as_deref(), Some(text).filter(|text| !text.is_empty()));
    assert!(node.gateway.is_some() != node.gateway_unreadable);
    assert_eq!(node.subnets, Some(NodeSubnets::default_of(text)));
    if let Some(Ok(id)) = node.id {
        assert_eq!(text.trim_start_matches('+').parse(), Ok(id));
    }
    let metadata = json!({ "name": "a", "namespace": "red", "annotations": annotations });
    let pod = json!({ "metadata": metadata, "spec": { "nodeName": "n1", "containers": [] } });
    let pod = convert::pod(serde_json::from_value(pod).unwrap()).unwrap();
    assert_eq!(pod.networks, Some(PodNetworks::default_of(text)));
    let namespace = json!({ "metadata": { "name": "red", "annotations": annotations } });
    let (namespace, problems) = convert::namespace(serde_json::from_value(namespace).unwrap()).unwrap();
    assert!(namespace.external_gateways.ips.len() <= 32 && problems.len() <= 10);
    assert!(problems.iter().all(|problem| problem.message.contains(ROUTING_EXTERNAL_GWS)), "{problems:?}");
}

/// Compares the controller's flags as an agent does: they must not differ from themselves, nor from their written form.
fn agreement(text: &str) {
    let Ok(network) = ClusterNetwork::read(text) else { return };
    assert_eq!(cluster_network::differences(&network, &network), []);
    let annotations = BTreeMap::from([(CLUSTER_NETWORK.to_owned(), encode(&network))]);
    assert_eq!(cluster_network::check(&annotations, &network), Ok(Vec::new()));
}
