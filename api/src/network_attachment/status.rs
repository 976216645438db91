//! What a pod got, as the de-facto standard has it (section 5): an entry for each interface.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::annotation::encode;

/// Key of the annotation.
pub const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// The definition as NAMESPACE/NAME, or the name of the cluster's own network.
    pub name: String,
    /// Name of the interface inside the pod.
    pub interface: String,
    /// Addresses of the interface, without prefix lengths.
    pub ips: Vec<IpAddr>,
    /// MAC address of the interface.
    pub mac: String,
    /// Whether it is the cluster's network, whose address is the pod's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// Gateways of the pod's default route, if it goes through this interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "default-route")]
    pub default_route: Vec<IpAddr>,
    /// Always empty: names are the cluster's own affair.
    pub dns: Dns,
}

/// Settings of name resolution, of which there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {}

/// The annotation's value.
#[must_use]
pub fn network_status(interfaces: &[NetworkStatus]) -> String {
    encode(&interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_standard() {
        let one = |name: &str, interface: &str, default| NetworkStatus {
            name: name.into(),
            interface: interface.into(),
            ips: vec!["172.16.24.5".parse().unwrap()],
            mac: "0a:58:ac:10:18:05".into(),
            default,
            default_route: Vec::new(),
            dns: Dns::default(),
        };
        assert_eq!(
            network_status(&[one("slipstream", "eth0", true), one("shop/blue", "net1", false)]),
            r#"[{"name":"slipstream","interface":"eth0","ips":["172.16.24.5"],"mac":"0a:58:ac:10:18:05","default":true,"dns":{}},{"name":"shop/blue","interface":"net1","ips":["172.16.24.5"],"mac":"0a:58:ac:10:18:05","dns":{}}]"#
        );
    }
}
