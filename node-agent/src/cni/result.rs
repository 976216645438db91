//! Result of ADD, in the format of the requested CNI version.

use std::net::IpAddr;

use api::MacAddr;
use ipnet::IpNet;
use serde_json::{Value, json};

/// Result of ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddResult {
    /// Name of the host end.
    pub host: String,
    /// MAC address of the host end.
    pub host_mac: MacAddr,
    /// Name of the container end.
    pub ifname: String,
    /// MAC address of the container end.
    pub mac: MacAddr,
    /// `CNI_NETNS`, exactly as given.
    pub sandbox: String,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// Addresses of the container end with their gateways, primary family first.
    pub ips: Vec<(IpNet, Option<IpAddr>)>,
}

impl AddResult {
    /// Formats the result as JSON for `version`, one of [`super::request::VERSIONS`].
    pub fn to_json(&self, version: &str) -> Value {
        let mut host = json!({ "name": self.host, "mac": self.host_mac.to_string() });
        let mut pod = json!({ "name": self.ifname, "mac": self.mac.to_string(), "sandbox": self.sandbox });
        if version >= "1.1.0" {
            host["mtu"] = json!(self.mtu);
            pod["mtu"] = json!(self.mtu);
        }
        let ips: Vec<Value> =
            self.ips.iter().map(|(address, gateway)| ip(address, *gateway, version)).collect();
        json!({ "cniVersion": version, "interfaces": [host, pod], "ips": ips })
    }
}

fn ip(address: &IpNet, gateway: Option<IpAddr>, version: &str) -> Value {
    // Index of the container end in `interfaces`.
    let mut ip = json!({ "address": address.to_string(), "interface": 1 });
    if let Some(gateway) = gateway {
        ip["gateway"] = json!(gateway.to_string());
    }
    if version < "1.0.0" {
        ip["version"] = json!(if address.addr().is_ipv4() { "4" } else { "6" });
    }
    ip
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> AddResult {
        AddResult {
            host: "7fabc589b5b8dc1".to_owned(),
            host_mac: "02:00:00:00:00:01".parse().unwrap(),
            ifname: "eth0".to_owned(),
            mac: "0a:58:0a:f4:00:04".parse().unwrap(),
            sandbox: "/run/netns/blue_c".to_owned(),
            mtu: 1400,
            ips: vec![
                ("10.244.0.4/24".parse().unwrap(), Some("10.244.0.1".parse().unwrap())),
                ("fd00::4/64".parse().unwrap(), None),
            ],
        }
    }

    #[test]
    fn version_1_1_has_the_mtu() {
        let json = result().to_json("1.1.0");
        assert_eq!(
            json,
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [
                    { "mac": "02:00:00:00:00:01", "name": "7fabc589b5b8dc1", "mtu": 1400 },
                    { "mac": "0a:58:0a:f4:00:04", "name": "eth0", "sandbox": "/run/netns/blue_c", "mtu": 1400 },
                ],
                "ips": [
                    { "address": "10.244.0.4/24", "gateway": "10.244.0.1", "interface": 1 },
                    { "address": "fd00::4/64", "interface": 1 },
                ],
            })
        );
    }

    #[test]
    fn older_versions_get_what_they_know() {
        let json = result().to_json("1.0.0");
        assert!(json["interfaces"][1].get("mtu").is_none() && json["ips"][0].get("version").is_none());
        for version in ["0.3.1", "0.4.0"] {
            let json = result().to_json(version);
            assert_eq!(json["cniVersion"], version);
            assert_eq!((&json["ips"][0]["version"], &json["ips"][1]["version"]), (&json!("4"), &json!("6")));
            assert!(json["interfaces"][0].get("mtu").is_none());
        }
    }
}
