//! Multus as the container runtime's configuration: what it delegates to. It is what the runtime calls, and makes a call for the pod's first
//! interface and one for each NetworkAttachmentDefinition that the pod names.

use std::path::Path;

use serde_json::Value;

use super::configurations::{CONF, EXECUTABLE, NETWORK, first_configuration, is_configuration};

/// The executables of Multus: the whole plugin, and the one that asks a daemon.
const TYPES: [&str; 2] = ["multus", "multus-shim"];

/// A configuration of Multus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multus {
    /// What it calls for the first interface, if that is another plugin.
    pub other_default: Option<String>,
}

impl Multus {
    /// The runtime's configuration in this directory, if it is one of Multus.
    ///
    /// # Errors
    /// The directory or the file cannot be read.
    pub fn in_use(directory: &Path) -> std::io::Result<Option<Self>> {
        let first = first_configuration(directory)?;
        let text = first.map(std::fs::read_to_string).transpose()?;
        Ok(text.as_deref().and_then(Self::read))
    }

    /// Reads a configuration; `None`: not one of Multus.
    pub fn read(text: &str) -> Option<Self> {
        let conf: Value = serde_json::from_str(text).ok()?;
        // In a list only the first one is called by the runtime without a result of another.
        let multus = [Some(&conf), conf.pointer("/plugins/0")]
            .into_iter()
            .flatten()
            .find(|one| one.get("type").and_then(Value::as_str).is_some_and(|kind| TYPES.contains(&kind)))?;
        let other_default = match multus.get("clusterNetwork").and_then(Value::as_str) {
            Some(network) if is_file(network) => {
                let ours = Path::new(network).file_name().is_some_and(|name| name == CONF);
                (!ours).then(|| network.to_owned())
            }
            // A network's own name, or a definition, of which nothing here tells whose it is.
            Some(_) => None,
            None => multus.pointer("/delegates/0").and_then(other_delegate),
        };
        Some(Self { other_default })
    }
}

fn is_file(network: &str) -> bool {
    is_configuration(network.as_ref())
}

fn other_delegate(delegate: &Value) -> Option<String> {
    let kind = |of: &Value| of.get("type").and_then(Value::as_str).map(str::to_owned);
    let kind = kind(delegate).or_else(|| delegate.pointer("/plugins/0").and_then(kind))?;
    let name = delegate.get("name").and_then(Value::as_str);
    (kind != EXECUTABLE && name != Some(NETWORK)).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_multus_calls_for_the_first_interface_is_told_where_it_is_another_plugin() {
        for (text, other) in [
            (r#"{"type": "multus", "clusterNetwork": "/etc/cni/net.d/10-slipstream.conf"}"#, None),
            (r#"{"type": "multus-shim", "clusterNetwork": "/host/etc/cni/net.d/10-slipstream.conf"}"#, None),
            (r#"{"type": "multus", "clusterNetwork": "slipstream"}"#, None),
            (
                r#"{"type": "multus", "clusterNetwork": "/etc/cni/net.d/20-other.conflist"}"#,
                Some("/etc/cni/net.d/20-other.conflist"),
            ),
            (r#"{"type": "multus", "delegates": [{"type": "slipstream-cni"}]}"#, None),
            (
                r#"{"type": "multus", "delegates": [{"name": "x", "plugins": [{"type": "ptp"}]}]}"#,
                Some("ptp"),
            ),
            (r#"{"plugins": [{"type": "multus-shim"}]}"#, None),
        ] {
            let read = Multus::read(text).unwrap();
            assert_eq!(read.other_default.as_deref(), other, "{text}");
        }
        for text in
            ["{", "{}", r#"{"type": "ptp", "delegates": []}"#, r#"{"plugins": [{"type": "ptp"}]}"#, "[]"]
        {
            assert_eq!(Multus::read(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_configuration_that_the_runtime_reads_counts() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(Multus::in_use(dir.path()).unwrap(), None);
        put(CONF, r#"{"type": "slipstream-cni"}"#);
        put("20-multus.conf", r#"{"type": "multus"}"#);
        assert_eq!(Multus::in_use(dir.path()).unwrap(), None);
        put("00-multus.conf", r#"{"type": "multus"}"#);
        assert_eq!(Multus::in_use(dir.path()).unwrap(), Some(Multus { other_default: None }));
        put("00-a.conf", r#"{"type": "ptp"}"#);
        assert_eq!(Multus::in_use(dir.path()).unwrap(), None);
    }
}
