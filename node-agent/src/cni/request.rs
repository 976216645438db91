//! Parses and validates a CNI call (environment and configuration), with the error codes of the CNI specification. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use api::cni::{Request, code};
use serde_json::{Map, Value};

use super::CniError;
use crate::kernel::link::MAX_NAME;
use api::NamespacedName;

/// Supported versions of the CNI specification.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Configuration key of the attachments that GC must keep.
const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
/// Misspelled form of the key, which libcni still sends as well.
const OLD_ATTACHMENTS: &str = "cni.dev/attachments";

/// CNI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Connect a container.
    Add,
    /// Disconnect a container.
    Del,
    /// Verify that a container is as ADD left it.
    Check,
    /// Report whether ADD can be served.
    Status,
    /// Disconnect all containers that are not in a list.
    Gc,
    /// Report supported versions.
    Version,
}

impl Command {
    /// Value of `CNI_COMMAND`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        let all = [Self::Add, Self::Del, Self::Check, Self::Status, Self::Gc, Self::Version];
        all.into_iter().find(|c| c.word() == word)
    }
}

/// A validated call.
#[derive(Debug, Clone)]
pub struct Call {
    /// Command.
    pub command: Command,
    /// Container id of the sandbox. Empty for STATUS, GC and VERSION.
    pub container_id: String,
    /// Path of the network namespace; optional for DEL.
    pub netns: Option<String>,
    /// Name of the interface in the container. Empty for STATUS, GC and VERSION.
    pub ifname: String,
    /// `CNI_ARGS`, all keys.
    pub args: BTreeMap<String, String>,
    /// Network configuration.
    pub conf: NetConf,
}

/// Network configuration, the parts in use.
#[derive(Debug, Clone, Default)]
pub struct NetConf {
    /// One of [`VERSIONS`].
    pub version: String,
    /// Name of the network.
    pub name: String,
    /// The virtual network that a NetworkAttachmentDefinition's configuration names, as NAME or NAMESPACE/NAME.
    pub network: Option<String>,
    /// Result of the previous plugin, or of this plugin's ADD for CHECK and DEL.
    pub prev_result: Option<Value>,
    /// Containers (id, interface) that GC must keep; `None` when the key is absent.
    pub valid_attachments: Option<BTreeSet<(String, String)>>,
}

/// `cniVersion` of a possibly invalid configuration, for formatting an error.
pub fn version_of(config: &str) -> String {
    let value: Option<Value> = serde_json::from_str(config).ok();
    let version = value.as_ref().and_then(|v| v.get("cniVersion")).and_then(Value::as_str);
    version.filter(|v| VERSIONS.contains(v)).unwrap_or("1.1.0").to_owned()
}

impl Call {
    /// Validates a request.
    ///
    /// # Errors
    /// All invalid variables at once, or the first invalid member of the configuration, with the code of the specification.
    pub fn parse(request: &Request) -> Result<Self, CniError> {
        let env = |key: &str| request.env.get(key).map(String::as_str).filter(|v| !v.is_empty());
        let word = env("CNI_COMMAND").unwrap_or_default();
        let command = Command::parse(word).ok_or_else(|| {
            let known = "must be ADD, DEL, CHECK, STATUS, GC or VERSION";
            CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_COMMAND: `{word}`: {known}"))
        })?;
        if command == Command::Version {
            let conf = NetConf { version: version_of(&request.config), ..NetConf::default() };
            return Ok(Self {
                command,
                container_id: String::new(),
                netns: None,
                ifname: String::new(),
                args: BTreeMap::new(),
                conf,
            });
        }
        let mut bad = Vec::new();
        let container = matches!(command, Command::Add | Command::Del | Command::Check);
        let mut take = |key: &str, needed: bool, valid: fn(&str) -> Option<&'static str>| match env(key) {
            None if needed => {
                bad.push(format!("{key}: missing"));
                String::new()
            }
            None => String::new(),
            Some(value) => {
                if let Some(problem) = valid(value) {
                    bad.push(format!("{key}: `{value}`: {problem}"));
                }
                value.to_owned()
            }
        };
        let container_id = take("CNI_CONTAINERID", container, bad_id);
        let ifname = take("CNI_IFNAME", container, bad_interface);
        let netns = take("CNI_NETNS", matches!(command, Command::Add | Command::Check), |_| None);
        take("CNI_PATH", command == Command::Gc, |_| None);
        let args = parse_args(env("CNI_ARGS").unwrap_or_default());
        if command == Command::Add {
            for key in ["K8S_POD_NAMESPACE", "K8S_POD_NAME"] {
                if args.get(key).is_none_or(String::is_empty) {
                    bad.push(format!("CNI_ARGS: no {key}"));
                }
            }
        }
        if !bad.is_empty() {
            return Err(CniError::new(code::INVALID_ENVIRONMENT, bad.join("; ")));
        }
        let conf = NetConf::parse(&request.config)?;
        conf.fits(command)?;
        let netns = (!netns.is_empty()).then_some(netns);
        Ok(Self { command, container_id, netns, ifname, args, conf })
    }

    /// Pod, if the runtime passed its name.
    pub fn pod(&self) -> Option<NamespacedName> {
        let get = |key| self.args.get(key).filter(|v| !v.is_empty()).cloned();
        Some(NamespacedName { namespace: get("K8S_POD_NAMESPACE")?, name: get("K8S_POD_NAME")? })
    }

    /// UID of the pod, if the runtime passed it.
    pub fn pod_uid(&self) -> Option<&str> {
        self.args.get("K8S_POD_UID").map(String::as_str).filter(|v| !v.is_empty())
    }
}

impl NetConf {
    fn parse(text: &str) -> Result<Self, CniError> {
        let invalid =
            |msg: String| CniError::new(code::INVALID_CONFIG, format!("network configuration: {msg}"));
        let value: Value = serde_json::from_str(text).map_err(|e| {
            CniError::new(code::DECODING_FAILURE, format!("network configuration is not JSON: {e}"))
        })?;
        let Value::Object(map) = value else { return Err(invalid("must be a JSON object".to_owned())) };
        let text = |key: &str| match map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(s)) => Ok(Some(s.clone())),
            Some(other) => Err(invalid(format!("`{key}`: must be a string, not {other}"))),
        };
        // Absent means 0.1.0, from before the key existed.
        let version = text("cniVersion")?.unwrap_or_else(|| "0.1.0".to_owned());
        if !VERSIONS.contains(&version.as_str()) {
            let msg =
                format!("`cniVersion` {version} is not supported; supported are {}", VERSIONS.join(", "));
            return Err(CniError::new(code::INCOMPATIBLE_VERSION, msg));
        }
        let name = text("name")?.unwrap_or_default();
        if let Some(problem) = bad_id(&name) {
            return Err(invalid(format!("`name`: `{name}`: {problem}")));
        }
        let prev_result = map.get("prevResult").filter(|v| !v.is_null()).cloned();
        let valid_attachments = attachments(&map).map_err(invalid)?;
        let network = text("network")?;
        Ok(Self { version, name, network, prev_result, valid_attachments })
    }

    fn fits(&self, command: Command) -> Result<(), CniError> {
        let since = match command {
            Command::Check => "0.4.0",
            Command::Status | Command::Gc => "1.1.0",
            _ => return self.fits_add(command),
        };
        if self.version.as_str() < since {
            let word = command.word();
            let msg = format!("{word} requires CNI {since} or later, but `cniVersion` is {}", self.version);
            return Err(CniError::new(code::INCOMPATIBLE_VERSION, msg));
        }
        Ok(())
    }

    fn fits_add(&self, command: Command) -> Result<(), CniError> {
        match &self.prev_result {
            Some(value) if command == Command::Add => Err(CniError::new(
                code::UNSUPPORTED_FIELD,
                format!("`prevResult`: {value}: this plugin must be the first in the plugin list"),
            )),
            _ => Ok(()),
        }
    }
}

fn attachments(map: &Map<String, Value>) -> Result<Option<BTreeSet<(String, String)>>, String> {
    let mut all = None;
    for key in [VALID_ATTACHMENTS, OLD_ATTACHMENTS] {
        let list = match map.get(key) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(list)) => list,
            Some(other) => return Err(format!("`{key}`: must be a list, not {other}")),
        };
        let all = all.get_or_insert_with(BTreeSet::new);
        for item in list {
            let text = |field: &str| {
                let value = item.get(field).and_then(Value::as_str);
                value.map(str::to_owned).ok_or_else(|| format!("`{key}`: {item}: `{field}` is missing"))
            };
            all.insert((text("containerID")?, text("ifname")?));
        }
    }
    Ok(all)
}

fn parse_args(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(k, v)| (k.trim().to_owned(), v.to_owned())).collect()
}

/// Container ids and network names: `[A-Za-z0-9][A-Za-z0-9_.-]*`.
fn bad_id(id: &str) -> Option<&'static str> {
    let ok = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    (!ok).then_some("must be a letter or digit, followed by letters, digits, `_`, `.` and `-`")
}

pub(super) fn bad_interface(name: &str) -> Option<&'static str> {
    if name.len() > MAX_NAME {
        return Some("must have at most 15 bytes");
    }
    // The kernel cuts a name at NUL and replaces `%d` by a number, so the link would get another name.
    let bad = |c: char| "/:%\0".contains(c) || c.is_whitespace();
    let ok = name != "." && name != ".." && !name.contains(bad);
    (!ok).then_some("must not be `.` or `..`, or contain `/`, `:`, `%`, NUL or white space")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENV: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=red;K8S_POD_NAME=a;K8S_POD_UID=u;X=Y=Z"),
    ];
    const CONF: &str = r#"{"cniVersion":"1.1.0","name":"slipstream","type":"slipstream-cni","unknown":[1]}"#;

    fn request(change: &[(&str, &str)], config: &str) -> Request {
        let mut env: BTreeMap<String, String> =
            ENV.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        for (key, value) in change {
            env.insert((*key).to_owned(), (*value).to_owned());
        }
        Request { env, config: config.to_owned(), started_ns: 0 }
    }

    fn fails(change: &[(&str, &str)], config: &str) -> CniError {
        Call::parse(&request(change, config)).unwrap_err()
    }

    #[test]
    fn a_good_add_is_read_and_unknown_keys_are_no_harm() {
        let call = Call::parse(&request(&[], CONF)).unwrap();
        assert_eq!(call.pod().unwrap().to_string(), "red/a");
        assert_eq!(call.pod_uid(), Some("u"));
        assert_eq!(call.args["X"], "Y=Z");
        assert_eq!((call.conf.version.as_str(), call.conf.name.as_str()), ("1.1.0", "slipstream"));
    }

    #[test]
    fn every_bad_variable_is_named() {
        let error = fails(
            &[("CNI_CONTAINERID", "-x"), ("CNI_NETNS", ""), ("CNI_IFNAME", "a/b"), ("CNI_ARGS", "")],
            CONF,
        );
        assert_eq!(error.code, code::INVALID_ENVIRONMENT);
        for key in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "K8S_POD_NAMESPACE", "K8S_POD_NAME"] {
            assert!(error.msg.contains(key), "{key} in {}", error.msg);
        }
        for bad in [".", "..", "a b", "a:b", "sixteen-bytes-00", "eth%d"] {
            assert!(fails(&[("CNI_IFNAME", bad)], CONF).msg.contains("CNI_IFNAME"));
        }
        assert_eq!(fails(&[("CNI_COMMAND", "FROB")], CONF).code, code::INVALID_ENVIRONMENT);
        assert_eq!(fails(&[("CNI_CONTAINERID", "")], CONF).code, code::INVALID_ENVIRONMENT);
    }

    /// No environment variable can contain one, but a request on the socket can.
    #[test]
    fn an_interface_name_with_a_nul_byte_is_refused() {
        assert!(fails(&[("CNI_IFNAME", "eth0H\0\0\0")], CONF).msg.contains("NUL"));
    }

    #[test]
    fn del_needs_neither_namespace_nor_pod() {
        let call =
            Call::parse(&request(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", ""), ("CNI_ARGS", "")], CONF))
                .unwrap();
        assert_eq!((call.command, call.netns), (Command::Del, None));
    }

    #[test]
    fn configurations_that_cannot_be_used_get_the_specifications_codes() {
        for (config, code) in [
            ("", code::DECODING_FAILURE),
            ("{", code::DECODING_FAILURE),
            ("[]", code::INVALID_CONFIG),
            (r#"{"cniVersion":"1.1.0"}"#, code::INVALID_CONFIG),
            (r#"{"cniVersion":"1.1.0","name":"a b"}"#, code::INVALID_CONFIG),
            (r#"{"cniVersion":"1.1.0","name":5}"#, code::INVALID_CONFIG),
            (r#"{"cniVersion":"9.9.9","name":"n"}"#, code::INCOMPATIBLE_VERSION),
            (r#"{"name":"n"}"#, code::INCOMPATIBLE_VERSION),
            (r#"{"cniVersion":"1.1.0","name":"n","prevResult":{}}"#, code::UNSUPPORTED_FIELD),
        ] {
            assert_eq!(fails(&[], config).code, code, "{config}");
        }
    }

    #[test]
    fn verbs_are_refused_before_the_version_that_brought_them() {
        for (verb, version) in [("CHECK", "0.3.1"), ("STATUS", "1.0.0"), ("GC", "1.0.0")] {
            let config = CONF.replace("1.1.0", version);
            let change = [("CNI_COMMAND", verb), ("CNI_PATH", "/opt/cni/bin")];
            assert_eq!(fails(&change, &config).code, code::INCOMPATIBLE_VERSION, "{verb}");
            assert!(Call::parse(&request(&change, CONF)).is_ok(), "{verb}");
        }
    }

    #[test]
    fn gc_reads_both_spellings_and_tells_absent_from_empty() {
        let gc = |extra: &str| {
            let config = CONF.replace(r#""unknown":[1]"#, extra);
            let request = request(&[("CNI_COMMAND", "GC"), ("CNI_PATH", "/bin")], &config);
            Call::parse(&request).map(|call| call.conf.valid_attachments)
        };
        let one = r#"[{"containerID":"c1","ifname":"eth0"}]"#;
        let two = r#"[{"containerID":"c2","ifname":"eth0"}]"#;
        assert_eq!(gc(r#""x":1"#).unwrap(), None);
        assert_eq!(gc(r#""cni.dev/valid-attachments":[]"#).unwrap().unwrap().len(), 0);
        assert_eq!(gc(&format!(r#""cni.dev/attachments":{one}"#)).unwrap().unwrap().len(), 1);
        let both = format!(r#""cni.dev/valid-attachments":{one},"cni.dev/attachments":{two}"#);
        assert_eq!(gc(&both).unwrap().unwrap().len(), 2);
        assert_eq!(
            gc(r#""cni.dev/attachments":[{"ifname":"eth0"}]"#).unwrap_err().code,
            code::INVALID_CONFIG
        );
    }

    #[test]
    fn version_needs_no_configuration() {
        assert_eq!(Call::parse(&request(&[("CNI_COMMAND", "VERSION")], "")).unwrap().conf.version, "1.1.0");
    }
}
