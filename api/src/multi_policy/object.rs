//! The object as the API server has it. `spec` is kept as it is: a policy with a wrong field must not end the list and the watch of all
//! others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{POLICY_FOR, networks};
use crate::pod_attachments::NetworkRef;
use crate::resource::namespaced_resource;

/// A `MultiNetworkPolicy`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MultiNetworkPolicy {
    /// Namespace, name, the annotation and so on.
    pub metadata: ObjectMeta,
    /// Specification of the policy, in the schema of NetworkPolicy.
    #[serde(default)]
    pub spec: Value,
}

impl MultiNetworkPolicy {
    /// The networks that it is about.
    ///
    /// # Errors
    /// The annotation is missing, or names what is no network.
    pub fn networks(&self) -> Result<Vec<NetworkRef>, String> {
        let annotations = self.metadata.annotations.as_ref();
        match annotations.and_then(|all| all.get(POLICY_FOR)) {
            Some(text) => networks(text),
            None => Err(format!(
                "annotation {POLICY_FOR} is missing; it names the networks that the policy is about, such as `blue, infra/red`"
            )),
        }
    }
}

namespaced_resource!(MultiNetworkPolicy);
