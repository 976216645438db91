//! Reading the value of one annotation of a pod: JSON as people write it, and the fields that several annotations have.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::{MAX_INTERFACE_NAME, RequestError, StaticIp};
use crate::MacAddr;
use crate::quote::quoted;

/// Reads the value of one annotation.
pub(super) struct Reader {
    pub(super) key: &'static str,
}

impl Reader {
    pub(super) fn error(&self, problem: impl Into<String>) -> RequestError {
        RequestError { key: self.key, problem: problem.into() }
    }

    pub(super) fn json(&self, text: &str) -> Result<Value, RequestError> {
        let error = match serde_json::from_str(text) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let plain = text.replace(['“', '”'], "\"");
        // Objects with commas between them are a list whose brackets were forgotten.
        let listed = format!("[{plain}]");
        let candidates = [Some(plain.as_str()), plain.starts_with('{').then_some(listed.as_str())];
        let read = candidates.into_iter().flatten().find_map(|text| serde_json::from_str(text).ok());
        read.ok_or_else(|| self.error(format!("it is not JSON: {error}")))
    }

    /// The addresses asked for, at most one of each family.
    pub(super) fn ips(&self, path: &str, map: &Map<String, Value>) -> Result<Vec<StaticIp>, RequestError> {
        let mut ips = Vec::new();
        let field = field(path, "ip_address");
        for one in self.text(path, map, &["ip_address", "ipAddress"])?.iter().flat_map(|text| text.split(','))
        {
            let ip = static_ip(one.trim()).ok_or_else(|| {
                self.error(format!(
                    "`{field}`: `{}` is no address; the form is 172.16.24.2 or 172.16.24.2/24",
                    quoted(one)
                ))
            })?;
            if ips.iter().any(|other: &StaticIp| other.ip.is_ipv4() == ip.ip.is_ipv4()) {
                return Err(
                    self.error(format!("`{field}`: two addresses of one family; use only one of each"))
                );
            }
            ips.push(ip);
        }
        Ok(ips)
    }

    /// The MAC address asked for.
    pub(super) fn mac(&self, path: &str, map: &Map<String, Value>) -> Result<Option<MacAddr>, RequestError> {
        let Some(text) = self.text(path, map, &["mac_address", "macAddress"])? else { return Ok(None) };
        let error = |problem| self.error(format!("`{}`: {problem}", field(path, "mac_address")));
        mac(&text).map(Some).map_err(error)
    }

    /// The gateway asked for.
    pub(super) fn gateway(
        &self,
        path: &str,
        map: &Map<String, Value>,
    ) -> Result<Option<IpAddr>, RequestError> {
        let Some(text) = self.text(path, map, &["gateway_ip"])? else { return Ok(None) };
        text.parse().map(Some).map_err(|_bad| {
            self.error(format!(
                "`{}`: `{}` is no address; the form is 172.16.24.1",
                field(path, "gateway_ip"),
                quoted(text)
            ))
        })
    }

    /// The text of a field that has one of these names, without blanks around it; none where it is empty.
    pub(super) fn text(
        &self,
        path: &str,
        map: &Map<String, Value>,
        names: &[&str],
    ) -> Result<Option<String>, RequestError> {
        let mut given = names.iter().filter_map(|name| Some((*name, map.get(*name)?)));
        let Some((name, value)) = given.next() else { return Ok(None) };
        if let Some((other, _)) = given.next() {
            let place = if path.is_empty() { "it".to_owned() } else { format!("`{path}`") };
            return Err(self.error(format!("{place} has both `{name}` and `{other}`; use only one of them")));
        }
        match value {
            Value::String(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            other => {
                let field = field(path, name);
                Err(self.error(format!("`{field}` is {}; must be a string", quoted(other))))
            }
        }
    }
}

/// A field by its path.
fn field(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

pub(super) fn is_interface_name(name: &str) -> bool {
    name.len() <= MAX_INTERFACE_NAME
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().last().is_some_and(|byte| byte.is_ascii_digit())
}

pub(super) fn static_ip(text: &str) -> Option<StaticIp> {
    if let Ok(ip) = text.parse() {
        return Some(StaticIp { ip, prefix_len: None });
    }
    let net: IpNet = text.parse().ok()?;
    Some(StaticIp { ip: net.addr(), prefix_len: Some(net.prefix_len()) })
}

pub(super) fn mac(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|error: crate::mac::ParseMacError| error.to_string())?;
    if mac.0[0] & 1 == 1 || mac == MacAddr::default() {
        return Err(format!(
            "{mac} is not the address of one interface; its first byte must be even, such as 0a"
        ));
    }
    Ok(mac)
}
