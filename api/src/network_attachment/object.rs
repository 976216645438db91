//! The object as the API server has it. `spec` is kept as it is: a definition with a wrong field must not end the list and the watch of all
//! others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Definition;
use crate::NamespacedName;
use crate::resource::namespaced_resource;

/// A `NetworkAttachmentDefinition`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NetworkAttachmentDefinition {
    /// Namespace, name and so on.
    pub metadata: ObjectMeta,
    /// See [`NetworkAttachmentDefinition::read`].
    #[serde(default)]
    pub spec: Value,
}

impl NetworkAttachmentDefinition {
    /// What it means for us.
    #[must_use]
    pub fn read(&self) -> Definition {
        Definition::read(&NamespacedName::from(&self.metadata), &self.spec)
    }
}

namespaced_resource!(NetworkAttachmentDefinition);
