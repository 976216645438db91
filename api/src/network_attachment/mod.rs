//! NetworkAttachmentDefinitions (`k8s.cni.cncf.io/v1`): objects by which pods name further networks of any plugin, as Multus reads them.
//! Those of our plugin name a virtual network. Source: Kubernetes Network Custom Resource Definition De-facto Standard 1.3.

#[cfg(feature = "kubernetes")]
mod object;
mod status;

#[cfg(feature = "kubernetes")]
pub use object::NetworkAttachmentDefinition;
pub use status::{Dns, NetworkStatus, STATUS, network_status};

use serde_json::Value;

use crate::NamespacedName;
use crate::pod_attachments::NetworkRef;
use crate::quote::quoted;
use crate::virtual_network::check_name;

/// API group of the resource.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// Version of the resource.
pub const VERSION: &str = "v1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "k8s.cni.cncf.io/v1";
/// Kind of the resource.
pub const KIND: &str = "NetworkAttachmentDefinition";
/// Name of the resource in URLs.
pub const PLURAL: &str = "network-attachment-definitions";
/// What `type` is in the configuration of our plugin: the name of its executable.
pub const PLUGIN: &str = "slipstream-cni";

/// Classification of a NetworkAttachmentDefinition: for Slipstream, for another plugin, or unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// A virtual network, always with its namespace.
    Network(NetworkRef),
    /// Definition for Slipstream that cannot be used or read, with the reason.
    Unusable(String),
    /// Another plugin's, or one whose configuration is a file on the nodes.
    Foreign,
}

impl Definition {
    /// Reads `spec` of the definition `name`. The virtual network is field `network` of the configuration, NAME or NAMESPACE/NAME, or the
    /// one with the definition's own name; without a namespace it is in the definition's.
    #[must_use]
    pub fn read(name: &NamespacedName, spec: &Value) -> Self {
        let config = match spec.get("config") {
            None | Some(Value::Null) => return Self::Foreign,
            Some(Value::String(text)) if text.trim().is_empty() => return Self::Foreign,
            Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
                Ok(config) => config,
                Err(error) => return Self::Unusable(format!("spec.config is not JSON: {error}")),
            },
            Some(other) => {
                return Self::Unusable(format!("spec.config is {}; must be a string", quoted(other)));
            }
        };
        // A configuration, or a list of them with one of ours first.
        let chain = config.get("plugins").and_then(Value::as_array);
        let own = chain.map_or(Some(&config), |chain| chain.first());
        let Some(own) = own.filter(|own| own.get("type").and_then(Value::as_str) == Some(PLUGIN)) else {
            return Self::Foreign;
        };
        let text = match own.get("network") {
            None => name.name.as_str(),
            Some(Value::String(text)) => text.trim(),
            Some(other) => {
                return Self::Unusable(format!(
                    "spec.config: `network` is {}; must be a string",
                    quoted(other)
                ));
            }
        };
        let (namespace, network) = text.split_once('/').unwrap_or((&name.namespace, text));
        if [namespace, network].into_iter().any(|label| check_name(label).is_err()) {
            return Self::Unusable(format!(
                "spec.config: `network` is `{}`, which is no name of a virtual network; must be NAME or NAMESPACE/NAME",
                quoted(text)
            ));
        }
        Self::Network(NetworkRef { namespace: Some(namespace.to_owned()), name: network.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &str) -> Definition {
        Definition::read(&NamespacedName::new("shop", "blue"), &json!({ "config": config }))
    }

    fn network(namespace: &str, name: &str) -> Definition {
        Definition::Network(NetworkRef { namespace: Some(namespace.to_owned()), name: name.to_owned() })
    }

    #[test]
    fn ours_names_a_network_or_has_its_name() {
        assert_eq!(read(r#"{"cniVersion": "1.0.0", "type": "slipstream-cni"}"#), network("shop", "blue"));
        assert_eq!(read(r#"{"type": "slipstream-cni", "network": "red"}"#), network("shop", "red"));
        assert_eq!(read(r#"{"type": "slipstream-cni", "network": "infra/red"}"#), network("infra", "red"));
        assert_eq!(
            read(
                r#"{"name": "x", "plugins": [{"type": "slipstream-cni", "network": "red"}, {"type": "tuning"}]}"#
            ),
            network("shop", "red")
        );
    }

    #[test]
    fn others_are_left_alone_and_mistakes_in_ours_are_told() {
        for config in [r#"{"type": "macvlan", "network": 7}"#, r#"{"plugins": []}"#, "7", " "] {
            assert_eq!(read(config), Definition::Foreign, "{config}");
        }
        assert_eq!(Definition::read(&NamespacedName::new("a", "b"), &Value::Null), Definition::Foreign);
        for (config, words) in [
            ("{", "is not JSON"),
            (r#"{"type": "slipstream-cni", "network": 7}"#, "`network` is 7"),
            (r#"{"type": "slipstream-cni", "network": "a/b/c"}"#, "`a/b/c`, which is no name"),
        ] {
            let Definition::Unusable(why) = read(config) else { panic!("{config} is usable") };
            assert!(why.contains(words), "{why}");
        }
    }
}
