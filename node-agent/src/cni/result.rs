//! Result of ADD, in the format of the requested CNI version: for each interface its ends on the host and in the container, and its
//! addresses. A pod with several interfaces gets its routes listed, too.

use std::net::IpAddr;

use api::MacAddr;
use ipnet::IpNet;
use serde_json::{Value, json};

/// Result of ADD for one interface.
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

/// Result of ADD for all interfaces of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddResults {
    /// The interfaces; the first one is the one that the runtime named.
    pub interfaces: Vec<AddResult>,
    /// Routes inside the container: destination and next hop; none where the first interface is the only one.
    pub routes: Vec<(IpNet, IpAddr)>,
}

impl AddResult {
    /// Formats the result as JSON for `version`, one of [`super::request::VERSIONS`].
    pub fn to_json(&self, version: &str) -> Value {
        format(std::slice::from_ref(self), &[], version)
    }

    fn ends(&self, version: &str) -> [Value; 2] {
        let mut host = json!({ "name": self.host, "mac": self.host_mac.to_string() });
        let mut pod = json!({ "name": self.ifname, "mac": self.mac.to_string(), "sandbox": self.sandbox });
        if version >= "1.1.0" {
            host["mtu"] = json!(self.mtu);
            pod["mtu"] = json!(self.mtu);
        }
        [host, pod]
    }
}

impl AddResults {
    /// Formats the result as JSON for `version`, one of [`super::request::VERSIONS`].
    pub fn to_json(&self, version: &str) -> Value {
        format(&self.interfaces, &self.routes, version)
    }
}

fn format(interfaces: &[AddResult], routes: &[(IpNet, IpAddr)], version: &str) -> Value {
    let ends: Vec<Value> = interfaces.iter().flat_map(|one| one.ends(version)).collect();
    // Indexes of the container ends in `interfaces`.
    let indexes = (1..).step_by(2);
    let of = |(one, index): (&AddResult, usize)| {
        let ips = one.ips.iter().map(|(address, gateway)| ip(address, *gateway, index, version));
        ips.collect::<Vec<_>>()
    };
    let ips: Vec<Value> = interfaces.iter().zip(indexes).flat_map(of).collect();
    let mut result = json!({ "cniVersion": version, "interfaces": ends, "ips": ips });
    if !routes.is_empty() {
        let route = |(dest, via): &(IpNet, IpAddr)| json!({ "dst": dest.to_string(), "gw": via.to_string() });
        result["routes"] = routes.iter().map(route).collect();
    }
    result
}

fn ip(address: &IpNet, gateway: Option<IpAddr>, index: usize, version: &str) -> Value {
    let mut ip = json!({ "address": address.to_string(), "interface": index });
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

    #[test]
    fn several_interfaces_are_listed_with_their_addresses_and_all_routes() {
        let further = AddResult {
            host: "xp2qkkqu0vj018h".to_owned(),
            ifname: "net1".to_owned(),
            mac: "0a:58:ac:10:01:03".parse().unwrap(),
            mtu: 1500,
            ips: vec![("172.16.1.3/24".parse().unwrap(), Some("172.16.1.1".parse().unwrap()))],
            ..result()
        };
        let all = AddResults {
            interfaces: vec![result(), further],
            routes: vec![
                ("10.96.0.0/16".parse().unwrap(), "10.244.0.1".parse().unwrap()),
                ("0.0.0.0/0".parse().unwrap(), "172.16.1.1".parse().unwrap()),
            ],
        };
        let text = r#"{"cniVersion":"1.1.0","interfaces":[{"mac":"02:00:00:00:00:01","mtu":1400,"name":"7fabc589b5b8dc1"},{"mac":"0a:58:0a:f4:00:04","mtu":1400,"name":"eth0","sandbox":"/run/netns/blue_c"},{"mac":"02:00:00:00:00:01","mtu":1500,"name":"xp2qkkqu0vj018h"},{"mac":"0a:58:ac:10:01:03","mtu":1500,"name":"net1","sandbox":"/run/netns/blue_c"}],"ips":[{"address":"10.244.0.4/24","gateway":"10.244.0.1","interface":1},{"address":"fd00::4/64","interface":1},{"address":"172.16.1.3/24","gateway":"172.16.1.1","interface":3}],"routes":[{"dst":"10.96.0.0/16","gw":"10.244.0.1"},{"dst":"0.0.0.0/0","gw":"172.16.1.1"}]}"#;
        assert_eq!(all.to_json("1.1.0").to_string(), text);
        let text = r#"{"cniVersion":"0.4.0","interfaces":[{"mac":"02:00:00:00:00:01","name":"7fabc589b5b8dc1"},{"mac":"0a:58:0a:f4:00:04","name":"eth0","sandbox":"/run/netns/blue_c"},{"mac":"02:00:00:00:00:01","name":"xp2qkkqu0vj018h"},{"mac":"0a:58:ac:10:01:03","name":"net1","sandbox":"/run/netns/blue_c"}],"ips":[{"address":"10.244.0.4/24","gateway":"10.244.0.1","interface":1,"version":"4"},{"address":"fd00::4/64","interface":1,"version":"6"},{"address":"172.16.1.3/24","gateway":"172.16.1.1","interface":3,"version":"4"}],"routes":[{"dst":"10.96.0.0/16","gw":"10.244.0.1"},{"dst":"0.0.0.0/0","gw":"172.16.1.1"}]}"#;
        assert_eq!(all.to_json("0.4.0").to_string(), text);
    }

    #[test]
    fn one_interface_alone_has_the_result_that_it_always_had() {
        let alone = AddResults { interfaces: vec![result()], routes: Vec::new() };
        for version in super::super::request::VERSIONS {
            assert_eq!(alone.to_json(version).to_string(), result().to_json(version).to_string());
        }
    }
}
