//! The object as the API server has it. `spec` is kept as it is: an object with a wrong field must not end the list and the watch of all
//! others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::resource::namespaced_resource;
use crate::virtual_network::{SpecError, VirtualNetworkSpec, legacy};

/// An `onapNetwork`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OnapNetwork {
    /// Namespace, name and so on.
    pub metadata: ObjectMeta,
    /// The spec as it was written; [`OnapNetwork::read`] reads it.
    #[serde(default)]
    pub spec: Value,
}

impl OnapNetwork {
    /// The virtual network that it describes.
    ///
    /// # Errors
    /// `spec.config` is missing, not a string, or not the JSON that it should be.
    pub fn read(&self) -> Result<VirtualNetworkSpec, SpecError> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        match self.spec.get("config") {
            Some(Value::String(config)) => legacy::convert(name, config),
            Some(_) => Err(legacy::no_config("is not a string; must be a string with JSON in it")),
            None => Err(legacy::no_config("is missing; must be a string with JSON in it")),
        }
    }
}

namespaced_resource!(OnapNetwork);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_converted_and_one_with_a_wrong_field_is_read_and_the_field_named() {
        let read = |spec: Value| {
            let object = json!({"apiVersion": "k8s.plugin.opnfv.org/v1", "kind": "onapNetwork",
                "metadata": {"name": "ovn-ls-24", "namespace": "shop"}, "spec": spec});
            serde_json::from_value::<OnapNetwork>(object).unwrap().read()
        };
        let config = r#"{"cnitype": "ovn", "name": " ovn-ls-24", "subnet": " 172.16.24.0/24", "gateway": " 172.16.24.1"}"#;
        let spec = read(json!({"config": config})).unwrap();
        assert_eq!((spec.subnets[0].as_str(), spec.gateways[0].as_str()), ("172.16.24.0/24", "172.16.24.1"));
        for (spec, word) in [
            (json!({}), "missing"),
            (json!(null), "missing"),
            (json!({"config": {"subnet": "172.16.24.0/24"}}), "not a string"),
            (json!({"config": "{}"}), "subnet"),
        ] {
            let error = read(spec).unwrap_err();
            assert!(error.field.starts_with("spec.config") && error.to_string().contains(word), "{error}");
        }
    }
}
