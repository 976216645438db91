//! Settings and a node for the tests of plans.

use std::collections::BTreeMap;

use crate::config::{Config, Features};
use crate::index::Node;

/// A cluster with both address families, of whose database every feature is known.
pub(super) fn config() -> Config {
    Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap(), "fd00:10:244::/48/64".parse().unwrap()],
        service_cidrs: Vec::new(),
        join_subnets: vec!["100.64.0.0/16".parse().unwrap(), "fd98::/64".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap(), "fd69::/125".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: None,
        default_network: true,
        features: Features::ALL,
    }
}

/// Node `n1` with this gateway configuration.
pub(super) fn node(gateway: serde_json::Value) -> Node {
    Node {
        name: "n1".to_owned(),
        id: 2,
        subnets: vec!["10.244.0.0/24".parse().unwrap(), "fd00:10:244::/64".parse().unwrap()],
        addresses: Vec::new(),
        chassis: Some("c".to_owned()),
        gateway: Some(serde_json::from_value(gateway).unwrap()),
        gateway_unknown: false,
        host_cidrs: Vec::new(),
        userspace_tso: false,
        labels: BTreeMap::new(),
    }
}
