//! Reading what a pod asks for. The values are JSON as people write it: a list, an object with the list and routes, or bare
//! objects with commas between them; fields by either of two names; truth as text; typographic quotes from a web page.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::reader::{Reader, is_interface_name};
use super::{
    Attachment, MAX_INTERFACE_NAME, MAX_INTERFACES, MAX_ROUTES, NFN_REQUEST, NetworkRef, PRIMARY,
    PodAttachments, REQUEST, ROUTES, RequestError, Route, primary,
};
use crate::quote::quoted;

/// Fields of an entry, by all their names.
const ENTRY: [&str; 8] = [
    "name",
    "interface",
    "ip_address",
    "ipAddress",
    "mac_address",
    "macAddress",
    "gateway_ip",
    "defaultGateway",
];
/// What `type` may be in the words of ovn4nfv.
const NFN_TYPE: &str = "ovn4nfv";

/// Reads a pod's annotations. `get` returns an annotation's value by its key.
///
/// # Errors
/// The first annotation and field that cannot be used.
pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<PodAttachments, RequestError> {
    let given = |key: &str| get(key).map(str::trim).filter(|text| !text.is_empty());
    let mut found = PodAttachments::default();
    match (given(REQUEST), given(NFN_REQUEST)) {
        (Some(_), Some(_)) => {
            let problem = format!("annotation {NFN_REQUEST} is there too; use only one of them");
            return Err(RequestError { key: REQUEST, problem });
        }
        (Some(text), None) => Reader { key: REQUEST }.interfaces(text, &mut found)?,
        (None, Some(text)) => Reader { key: NFN_REQUEST }.interfaces(text, &mut found)?,
        // What asks for networks by name goes before the annotation of one interface.
        (None, None) => found.primary = given(PRIMARY).map(primary::parse).transpose()?,
    }
    if let Some(text) = given(ROUTES) {
        let reader = Reader { key: ROUTES };
        let Value::Array(list) = reader.json(text)? else {
            return Err(
                reader.error("must be a list, such as [{\"dst\": \"10.9.0.0/16\", \"gw\": \"172.16.24.1\"}]")
            );
        };
        reader.routes("", list, &mut found)?;
    }
    if let (true, Some(route)) = (found.attachments.is_empty(), found.routes.first()) {
        let problem = format!(
            "the route to {} has no interface: the pod asks for none with annotation {REQUEST}",
            route.dest
        );
        return Err(RequestError { key: ROUTES, problem });
    }
    Ok(found)
}

impl Reader {
    fn interfaces(&self, text: &str, found: &mut PodAttachments) -> Result<(), RequestError> {
        let (path, list) =
            match self.json(text)? {
                Value::Array(list) => (String::new(), list),
                Value::Object(map) if map.contains_key("name") => (String::new(), vec![Value::Object(map)]),
                Value::Object(map) => self.outer(map, found)?,
                _ => return Err(self.error(
                    "must be a list of interfaces, such as [{\"name\": \"blue\", \"interface\": \"net1\"}]",
                )),
            };
        if list.len() > MAX_INTERFACES {
            return Err(self.error(format!("{} interfaces; {MAX_INTERFACES} are possible", list.len())));
        }
        for (at, entry) in list.into_iter().enumerate() {
            let path = format!("{path}[{at}]");
            let attachment = self.entry(&path, entry)?;
            if found.attachments.iter().any(|other| other.interface == attachment.interface) {
                let name = &attachment.interface;
                return Err(self.error(format!(
                    "`{path}.interface`: `{name}` is there twice; each needs a name of its own"
                )));
            }
            found.attachments.push(attachment);
        }
        let mut defaults = found.attachments.iter().filter(|attachment| attachment.default_route);
        if let (Some(first), Some(second)) = (defaults.next(), defaults.next()) {
            return Err(self.error(format!(
                "`defaultGateway` is true for {} and {}; a pod has one default route",
                first.interface, second.interface
            )));
        }
        Ok(())
    }

    /// The object around the list: returns where the list is, and the list.
    fn outer(
        &self,
        map: Map<String, Value>,
        found: &mut PodAttachments,
    ) -> Result<(String, Vec<Value>), RequestError> {
        let mut list = None;
        for (field, value) in map {
            match (field.as_str(), value) {
                ("ovnNetwork" | "interface", Value::Array(all)) if list.is_none() => {
                    list = Some((field, all))
                }
                ("ovnNetworkRoutes", Value::Array(all)) => self.routes(&field, all, found)?,
                ("type", Value::String(kind)) if kind.trim() == NFN_TYPE => {}
                ("type", kind) => {
                    return Err(self.error(format!(
                        "`type` is {}; `{NFN_TYPE}` is the one that is known",
                        quoted(kind)
                    )));
                }
                ("ovnNetwork" | "interface" | "ovnNetworkRoutes", _) => {
                    return Err(self.error(format!("`{field}`: must be one list")));
                }
                _ => {
                    return Err(self.error(format!(
                        "unknown field `{}`; supported: ovnNetwork, ovnNetworkRoutes",
                        quoted(field)
                    )));
                }
            }
        }
        list.ok_or_else(|| self.error("there is no list `ovnNetwork`"))
    }

    fn entry(&self, path: &str, entry: Value) -> Result<Attachment, RequestError> {
        let Value::Object(map) = entry else {
            return Err(self.error(format!("`{path}` is {}; must be an object", quoted(entry))));
        };
        if let Some(field) = map.keys().find(|field| !ENTRY.contains(&field.as_str())) {
            let known = ENTRY.join(", ");
            return Err(self.error(format!("unknown field `{path}.{}`; supported: {known}", quoted(field))));
        }
        let text = |names: &[&str]| self.text(path, &map, names);
        let needed =
            |name: &str| text(&[name])?.ok_or_else(|| self.error(format!("`{path}.{name}` is missing")));
        let name = needed("name")?;
        let network = network(&name).ok_or_else(|| {
            self.error(format!(
                "`{path}.name`: `{}` is no name of a network; must be NAME or NAMESPACE/NAME",
                quoted(&name)
            ))
        })?;
        let interface = needed("interface")?;
        if !is_interface_name(&interface) {
            return Err(self.error(format!(
                "`{path}.interface`: `{}` is no name of an interface; at most {MAX_INTERFACE_NAME} letters and digits are \
                 needed, with a digit at the end, such as net1",
                quoted(&interface)
            )));
        }
        let (ips, mac) = (self.ips(path, &map)?, self.mac(path, &map)?);
        let gateways = self.gateway(path, &map)?.into_iter().collect();
        let default_route = self.truth(path, &map)?;
        Ok(Attachment { network, interface, ips, mac, gateways, default_route, claim: None })
    }

    fn truth(&self, path: &str, map: &Map<String, Value>) -> Result<bool, RequestError> {
        match map.get("defaultGateway") {
            None => Ok(false),
            Some(Value::Bool(truth)) => Ok(*truth),
            Some(Value::String(text)) if text.trim() == "true" => Ok(true),
            Some(Value::String(text)) if matches!(text.trim(), "false" | "") => Ok(false),
            Some(other) => {
                Err(self
                    .error(format!("`{path}.defaultGateway` is {}; must be true or false", quoted(other))))
            }
        }
    }

    fn routes(&self, path: &str, list: Vec<Value>, found: &mut PodAttachments) -> Result<(), RequestError> {
        for (at, entry) in list.into_iter().enumerate() {
            let path = format!("{path}[{at}]");
            let Value::Object(map) = entry else {
                return Err(self
                    .error(format!("`{path}` is {}; must be an object with `dst` and `gw`", quoted(entry))));
            };
            if let Some(field) = map.keys().find(|field| !matches!(field.as_str(), "dst" | "gw")) {
                return Err(
                    self.error(format!("unknown field `{path}.{}`; supported: dst, gw", quoted(field)))
                );
            }
            let needed = |name: &str| {
                let text = self.text(&path, &map, &[name])?;
                text.ok_or_else(|| self.error(format!("`{path}.{name}` is missing")))
            };
            let (dst, gw) = (needed("dst")?, needed("gw")?);
            let dest: IpNet =
                dst.parse().or_else(|_no_net| dst.parse::<IpAddr>().map(IpNet::from)).map_err(|_bad| {
                    self.error(format!(
                        "`{path}.dst`: `{}` is no CIDR; the form is 172.16.29.0/24",
                        quoted(&dst)
                    ))
                })?;
            let next_hop: IpAddr = gw.parse().map_err(|_bad| {
                self.error(format!("`{path}.gw`: `{}` is no address; the form is 172.16.24.1", quoted(&gw)))
            })?;
            if dest.addr().is_ipv4() != next_hop.is_ipv4() {
                return Err(self.error(format!("`{path}`: {dest} and {next_hop} are of different families")));
            }
            if dest.prefix_len() == 0 {
                return Err(self.error(format!(
                    "`{path}.dst`: {dest} is the default route, which `defaultGateway` decides"
                )));
            }
            let dest = dest.trunc();
            if found.routes.iter().any(|other| other.dest == dest) {
                return Err(
                    self.error(format!("`{path}.dst`: there is a route to {dest} already; use only one"))
                );
            }
            if found.routes.len() == MAX_ROUTES {
                return Err(
                    self.error(format!("`{path}`: more than {MAX_ROUTES} routes; so many are possible"))
                );
            }
            found.routes.push(Route { dest, next_hop });
        }
        Ok(())
    }
}

fn network(text: &str) -> Option<NetworkRef> {
    NetworkRef::parse(text, |label| crate::virtual_network::check_name(label).is_ok())
}

#[cfg(test)]
mod tests;
