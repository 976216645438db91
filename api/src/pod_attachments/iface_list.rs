//! The list of a pod's further interfaces with their addresses, for readers that know [`super::IFACE_LIST`] only.

use serde::Serialize;

use crate::annotation::encode;

/// One interface. All values are text, as older readers expect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Iface {
    /// The first address with its prefix length.
    pub ip_address: String,
    /// The MAC address.
    pub mac_address: String,
    /// The gateway of the address's family; it is used where `default_gateway` is `true`.
    pub gateway_ip: String,
    /// Name of the interface inside the pod.
    pub interface: String,
    /// `true` or `false`.
    #[serde(rename = "defaultGateway")]
    pub default_gateway: String,
}

/// The annotation's value.
pub fn iface_list(interfaces: &[Iface]) -> String {
    encode(&interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_list_is_written() {
        let iface = |net: u8, last: u8, mac: &str, name: &str, default: &str| Iface {
            ip_address: format!("172.16.{net}.{last}/24"),
            mac_address: mac.to_owned(),
            gateway_ip: format!("172.16.{net}.1"),
            interface: name.to_owned(),
            default_gateway: default.to_owned(),
        };
        let list = iface_list(&[
            iface(26, 2, "0a:00:00:00:00:1d", "net0", "true"),
            iface(24, 2, "0a:00:00:00:00:1e", "net1", "false"),
        ]);
        let published = r#"[{"ip_address":"172.16.26.2/24", "mac_address":"0a:00:00:00:00:1d", "gateway_ip": "172.16.26.1","interface":"net0", “defaultGateway”:”true”},
{"ip_address":"172.16.24.2/24", "mac_address":"0a:00:00:00:00:1e", "gateway_ip": "172.16.24.1","interface":"net1", “defaultGateway”:”false”}]"#;
        // The page has typographic quotes, which its program never wrote.
        let published: serde_json::Value =
            serde_json::from_str(&published.replace(['“', '”'], "\"")).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&list).unwrap(), published);
        assert!(list.starts_with(
            r#"[{"ip_address":"172.16.26.2/24","mac_address":"0a:00:00:00:00:1d","gateway_ip":"#
        ));
    }
}
