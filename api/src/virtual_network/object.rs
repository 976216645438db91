//! The object as the API server has it. `spec` and `status` are kept as they are: an object with a wrong field must not end the
//! list and the watch of all others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::spec::{SpecError, VirtualNetworkSpec};
use super::status::VirtualNetworkStatus;
use crate::resource::namespaced_resource;

/// A `VirtualNetwork`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VirtualNetwork {
    /// Namespace, name, finalizers and so on.
    pub metadata: ObjectMeta,
    /// See [`VirtualNetwork::read_spec`].
    #[serde(default)]
    pub spec: Value,
    /// See [`VirtualNetwork::read_status`].
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub status: Value,
}

impl VirtualNetwork {
    /// The fields of `spec`.
    ///
    /// # Errors
    /// A field is missing, unknown or of another type.
    pub fn read_spec(&self) -> Result<VirtualNetworkSpec, SpecError> {
        VirtualNetworkSpec::read(&self.spec)
    }

    /// The fields of `status`; empty ones where it is missing or cannot be read, as it is written anew then.
    pub fn read_status(&self) -> VirtualNetworkStatus {
        VirtualNetworkStatus::deserialize(&self.status).unwrap_or_default()
    }
}

namespaced_resource!(VirtualNetwork);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_with_a_wrong_field_is_read_and_the_field_is_named() {
        let object = json!({"apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
            "metadata": {"name": "blue", "namespace": "shop"}, "spec": {"subnets": 7}, "status": "x"});
        let network: VirtualNetwork = serde_json::from_value(object).unwrap();
        assert_eq!(network.read_spec().unwrap_err().field, "spec.subnets");
        assert_eq!(network.read_status(), VirtualNetworkStatus::default());
        let bare: VirtualNetwork = serde_json::from_value(json!({"metadata": {"name": "blue"}})).unwrap();
        assert_eq!(bare.read_spec().unwrap_err().field, "spec");
    }
}
