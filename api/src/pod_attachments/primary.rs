//! What a pod asks for on the cluster's network, by the annotation of the time when pods had one interface. It holds JSON as
//! the controllers of that time wrote it: `{"ip_address": "10.244.1.9/24", "mac_address": "0a:00:00:00:00:01", "gateway_ip": "10.244.1.1"}`.

use std::net::IpAddr;

use serde_json::Value;

use super::reader::Reader;
use super::{PRIMARY, RequestError, StaticIp};
use crate::MacAddr;
use crate::quote::quoted;

const FIELDS: [&str; 5] = ["ip_address", "ipAddress", "mac_address", "macAddress", "gateway_ip"];

/// Addresses that a pod asks for; what it does not ask for is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrimaryWish {
    /// At most one of each family.
    pub ips: Vec<StaticIp>,
    /// The MAC address.
    pub mac: Option<MacAddr>,
    /// The gateway that the pod expects, which the node decides.
    pub gateway: Option<IpAddr>,
}

/// Reads the value of the annotation.
pub(super) fn parse(text: &str) -> Result<PrimaryWish, RequestError> {
    let reader = Reader { key: PRIMARY };
    let Value::Object(map) = reader.json(text)? else {
        return Err(reader.error("must be an object, such as {\"ip_address\": \"10.244.1.9\"}"));
    };
    if let Some(field) = map.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        let known = FIELDS.join(", ");
        return Err(reader.error(format!("unknown field `{}`; supported: {known}", quoted(field))));
    }
    let ips = reader.ips("", &map)?;
    let mac = reader.mac("", &map)?;
    let gateway = reader.gateway("", &map)?;
    if ips.is_empty() && mac.is_none() {
        return Err(reader.error("must have `ip_address` or `mac_address`"));
    }
    Ok(PrimaryWish { ips, mac, gateway })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_or_without_a_prefix_are_read() {
        let full = r#"{"ip_address": "10.244.1.9/24", "mac_address": "0a:00:00:00:00:01", "gateway_ip": "10.244.1.1"}"#;
        let wish = parse(full).unwrap();
        assert_eq!(wish.ips, [StaticIp { ip: [10, 244, 1, 9].into(), prefix_len: Some(24) }]);
        assert_eq!(wish.mac, Some(MacAddr([0x0a, 0, 0, 0, 0, 1])));
        assert_eq!(wish.gateway, Some([10, 244, 1, 1].into()));
        let both = parse(r#"{"ipAddress": "10.244.1.9, fd00:10:244:1::9"}"#).unwrap();
        assert_eq!((both.ips.len(), both.mac), (2, None));
        assert!(parse(r#"{"macAddress": "0A:00:00:00:00:4E"}"#).unwrap().ips.is_empty());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (text, says) in [
            ("10.244.1.9", "it is not JSON"),
            ("[]", "must be an object"),
            ("{}", "must have `ip_address` or `mac_address`"),
            (r#"{"ip_address": "10.244.1.300"}"#, "`ip_address`: `10.244.1.300` is no address"),
            (r#"{"ip_address": "10.244.1.9,10.244.1.8"}"#, "two addresses of one family"),
            (r#"{"ip_address": 7}"#, "`ip_address` is 7; must be a string"),
            (
                r#"{"mac_address": "01:00:00:00:00:01"}"#,
                "`mac_address`: 01:00:00:00:00:01 is not the address of one interface",
            ),
            (r#"{"ip_address": "10.244.1.9", "gateway_ip": "x"}"#, "`gateway_ip`: `x` is no address"),
            (
                r#"{"mac_address": "0a:00:00:00:00:01", "macAddress": ""}"#,
                "ovn: it has both `mac_address` and `macAddress`; use only one of them",
            ),
            (r#"{"ip": "10.244.1.9"}"#, "unknown field `ip`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("annotation ovn: ") && error.contains(says), "{text}: {error}");
        }
    }
}
