//! The object as the API server has it. `spec` is kept as it is: a definition with a wrong field must not end the list and the watch of all
//! others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Definition;
use crate::NamespacedName;

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

impl Resource for NetworkAttachmentDefinition {
    const API_VERSION: &'static str = super::API_VERSION;
    const GROUP: &'static str = super::GROUP;
    const KIND: &'static str = super::KIND;
    const VERSION: &'static str = super::VERSION;
    const URL_PATH_SEGMENT: &'static str = super::PLURAL;
    type Scope = NamespaceResourceScope;
}

impl Metadata for NetworkAttachmentDefinition {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
