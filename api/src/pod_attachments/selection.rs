//! The de-facto standard's form of what a pod asks for: annotation [`SELECTIONS`] names NetworkAttachmentDefinitions, separated by commas
//! or as a JSON list of objects (Kubernetes Network Custom Resource Definition De-facto Standard 1.3, section 4).
//!
//! Elements may be for other plugins, whose fields nobody here knows. So only what every element has is checked while reading; the rest
//! when the definition turns out to be ours ([`Selection::attachment`]).

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::reader::{is_interface_name, mac, static_ip};
use super::{Attachment, MAX_INTERFACE_NAME, NetworkRef, RequestError, StaticIp, is_subdomain};
use crate::quote::quoted;

/// Key of the annotation.
pub const SELECTIONS: &str = "k8s.v1.cni.cncf.io/networks";
/// Elements that an annotation may have, of all plugins.
pub const MAX_SELECTIONS: usize = 100;
/// The field that names an IPAMClaim.
const CLAIM: &str = "ipam-claim-reference";
/// Fields for other kinds of networks.
const UNSUPPORTED: [&str; 4] = ["bandwidth", "portMappings", "infiniband-guid", "deviceID"];

/// One element: a definition, and what the pod wants of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The NetworkAttachmentDefinition; without a namespace in the pod's own.
    pub definition: NetworkRef,
    /// Name of the interface inside the pod: as the pod says, or `net` and the element's place from 1.
    pub interface: String,
    /// The element as it was read; empty where a name is all that it says.
    fields: Map<String, Value>,
    /// Place of the element in the annotation, from 0.
    at: usize,
}

fn error(problem: impl Into<String>) -> RequestError {
    RequestError { key: SELECTIONS, problem: problem.into() }
}

/// Reads the annotation.
///
/// # Errors
/// It is no list of names or objects, or an element lacks a name that can be one.
pub fn selections(text: &str) -> Result<Vec<Selection>, RequestError> {
    let text = text.trim();
    let elements: Vec<Map<String, Value>> = if text.starts_with(['[', '{']) {
        match serde_json::from_str(text) {
            Ok(Value::Array(all)) => all
                .into_iter()
                .enumerate()
                .map(|(at, element)| match element {
                    Value::Object(fields) => Ok(fields),
                    other => Err(error(format!("`[{at}]` is {}; must be an object", quoted(other)))),
                })
                .collect::<Result<_, _>>()?,
            Ok(_) => return Err(error("must be a list of objects, such as [{\"name\": \"blue\"}]")),
            Err(bad) => return Err(error(format!("it is not JSON: {bad}"))),
        }
    } else {
        text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(from_text).collect()
    };
    if elements.len() > MAX_SELECTIONS {
        return Err(error(format!("{} elements; {MAX_SELECTIONS} are possible", elements.len())));
    }
    elements.into_iter().enumerate().map(|(at, fields)| element(at, fields)).collect()
}

/// `[NAMESPACE/]NAME[@INTERFACE]`.
fn from_text(text: &str) -> Map<String, Value> {
    let (name, interface) = match text.split_once('@') {
        Some((name, interface)) => (name, Some(interface)),
        None => (text, None),
    };
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, name),
    };
    let fields = [("namespace", namespace), ("name", Some(name)), ("interface", interface)];
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.trim().into()))).collect()
}

fn element(at: usize, fields: Map<String, Value>) -> Result<Selection, RequestError> {
    let text = |key: &str| match fields.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.trim()).filter(|text| !text.is_empty())),
        Some(other) => Err(error(format!("`[{at}].{key}` is {}; must be a string", quoted(other)))),
    };
    let name = text("name")?.ok_or_else(|| error(format!("`[{at}].name` is missing")))?;
    // RFC 1123's subdomain: names of definitions may have dots.
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= 253
            && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
    };
    let namespace = text("namespace")?;
    if let Some(bad) = [Some(name), namespace].into_iter().flatten().find(|text| !is_name(text)) {
        return Err(error(format!(
            "`[{at}]`: `{}` is no name of a NetworkAttachmentDefinition; must be NAME, NAMESPACE/NAME or NAME@INTERFACE",
            quoted(bad)
        )));
    }
    let interface = text("interface")?.map_or_else(|| format!("net{}", at + 1), str::to_owned);
    let definition = NetworkRef { namespace: namespace.map(str::to_owned), name: name.to_owned() };
    Ok(Selection { definition, interface, fields, at })
}

impl Selection {
    /// The interface on `network`, which the definition names.
    ///
    /// # Errors
    /// A field that a network of ours cannot have, or one with a wrong value.
    pub fn attachment(&self, network: NetworkRef) -> Result<Attachment, RequestError> {
        let path = format!("[{}]", self.at);
        if let Some(field) = UNSUPPORTED.into_iter().find(|field| self.fields.contains_key(*field)) {
            return Err(error(format!(
                "`{path}.{field}` is not supported on a virtual network; leave it out"
            )));
        }
        if !is_interface_name(&self.interface) {
            return Err(error(format!(
                "`{path}.interface`: `{}` is no name of an interface; must be at most {MAX_INTERFACE_NAME} letters and digits, with \
                 a digit at the end, such as net1",
                quoted(&self.interface)
            )));
        }
        let mut ips: Vec<StaticIp> = Vec::new();
        for text in self.list("ips")? {
            let ip = static_ip(text).ok_or_else(|| {
                error(format!(
                    "`{path}.ips`: `{}` is no address; the form is 172.16.24.2 or 172.16.24.2/24",
                    quoted(text)
                ))
            })?;
            if ips.iter().any(|other| other.ip.is_ipv4() == ip.ip.is_ipv4()) {
                return Err(error(format!(
                    "`{path}.ips`: two addresses of one family; use only one of each"
                )));
            }
            ips.push(ip);
        }
        let mac = match self.fields.get("mac") {
            None => None,
            Some(Value::String(text)) if text.trim().is_empty() => None,
            Some(Value::String(text)) => {
                Some(mac(text.trim()).map_err(|problem| error(format!("`{path}.mac`: {problem}")))?)
            }
            Some(other) => {
                return Err(error(format!("`{path}.mac` is {}; must be a string", quoted(other))));
            }
        };
        let mut gateways: Vec<IpAddr> = Vec::new();
        for text in self.list("default-route")? {
            let ip: IpAddr = text.parse().map_err(|_bad| {
                error(format!(
                    "`{path}.default-route`: `{}` is no address; the form is 172.16.24.1",
                    quoted(text)
                ))
            })?;
            if gateways.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
                return Err(error(format!(
                    "`{path}.default-route`: two gateways of one family; use only one of each"
                )));
            }
            gateways.push(ip);
        }
        let default_route = !gateways.is_empty();
        let claim = self.claim()?.map(str::to_owned);
        let interface = self.interface.clone();
        Ok(Attachment { network, interface, ips, mac, gateways, default_route, claim })
    }

    /// The IPAMClaim that keeps its addresses.
    ///
    /// # Errors
    /// The field is no name of an object.
    pub fn claim(&self) -> Result<Option<&str>, RequestError> {
        let path = format!("[{}].{CLAIM}", self.at);
        match self.fields.get(CLAIM) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(Value::String(text)) if is_subdomain(text.trim()) => Ok(Some(text.trim())),
            Some(Value::String(text)) => {
                Err(error(format!("`{path}`: `{}` is no name of an IPAMClaim", quoted(text))))
            }
            Some(other) => Err(error(format!("`{path}` is {}; must be a string", quoted(other)))),
        }
    }

    /// A field that is a list of strings.
    fn list(&self, key: &str) -> Result<Vec<&str>, RequestError> {
        let bad = |value: &Value| {
            error(format!("`[{}].{key}` is {}; must be a list of strings", self.at, quoted(value)))
        };
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(all)) => all
                .iter()
                .map(|one| one.as_str().map(str::trim).ok_or_else(|| bad(one)))
                .filter(|one| one.as_ref().is_ok_and(|text| !text.is_empty()) || one.is_err())
                .collect(),
            Some(other) => Err(bad(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blue() -> NetworkRef {
        NetworkRef { namespace: Some("shop".into()), name: "blue".into() }
    }

    fn problem(text: &str) -> String {
        let of = |selection: &Selection| selection.attachment(blue()).map(drop);
        let read = selections(text).and_then(|all| all.iter().try_for_each(of));
        read.unwrap_err().to_string()
    }

    #[test]
    fn names_with_commas_between_them_are_numbered_by_their_places() {
        let all = selections(" macvlan, infra/blue , red@net7,").unwrap();
        let told: Vec<_> =
            all.iter().map(|one| (one.definition.to_string(), one.interface.as_str())).collect();
        assert_eq!(
            told,
            [("macvlan".to_owned(), "net1"), ("infra/blue".to_owned(), "net2"), ("red".to_owned(), "net7")]
        );
    }

    #[test]
    fn objects_give_addresses_hardware_address_and_default_route() {
        let text = r#"[{"name": "a"}, {"name": "blue", "namespace": "infra", "ips": ["172.16.24.5/24", "fd01::5"],
            "mac": "0a:00:00:00:00:05", "interface": "net4", "default-route": ["172.16.24.1"], "cni-args": {"x": 1},
            "ipam-claim-reference": "vm1.blue"}]"#;
        let all = selections(text).unwrap();
        assert_eq!(all[0].interface, "net1");
        let found = all[1].attachment(blue()).unwrap();
        assert_eq!((found.interface.as_str(), found.ips.len(), found.default_route), ("net4", 2, true));
        assert_eq!(found.mac.unwrap().to_string(), "0a:00:00:00:00:05");
        assert_eq!(found.claim.as_deref(), Some("vm1.blue"));
        assert_eq!(found.gateways, ["172.16.24.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, words) in [
            ("[{\"name\": \"a\"", "it is not JSON"),
            ("[7]", "`[0]` is 7; must be an object"),
            ("{\"name\": \"a\"}", "a list of objects"),
            ("[{}]", "`[0].name` is missing"),
            ("a,B_", "`[1]`: `B_` is no name"),
            (r#"[{"name": "a", "ips": "1.2.3.4"}]"#, "`[0].ips` is \"1.2.3.4\"; must be a list of strings"),
            (r#"[{"name": "a", "ips": ["1.2.3.4", "1.2.3.5"]}]"#, "two addresses of one family"),
            (r#"[{"name": "a", "ips": ["1.2.3"]}]"#, "`1.2.3` is no address"),
            (r#"[{"name": "a", "mac": "01:00:00:00:00:05"}]"#, "first byte must be even"),
            (r#"[{"name": "a", "default-route": ["x"]}]"#, "`x` is no address"),
            (
                r#"[{"name": "a", "ipam-claim-reference": "A_"}]"#,
                "`[0].ipam-claim-reference`: `A_` is no name",
            ),
            (r#"[{"name": "a", "ipam-claim-reference": 7}]"#, "`[0].ipam-claim-reference` is 7"),
            (r#"[{"name": "a", "bandwidth": {}}]"#, "`[0].bandwidth` is not supported"),
            ("a@eth-one", "`eth-one` is no name of an interface"),
        ] {
            let said = problem(text);
            assert!(said.contains(words), "{text}: {said}");
            assert!(said.starts_with("annotation k8s.v1.cni.cncf.io/networks: "), "{said}");
        }
    }

    #[test]
    fn fields_of_other_plugins_are_no_error_until_the_definition_is_ours() {
        assert!(
            selections(r#"[{"name": "a", "bandwidth": {}, "unknown": 1, "interface": "eth.7"}]"#).is_ok()
        );
        assert!(selections("").unwrap().is_empty());
        assert!(selections(&"a,".repeat(MAX_SELECTIONS + 1)).is_err());
    }
}
