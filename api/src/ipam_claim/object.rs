//! The object as the API server has it. `spec` and `status` are kept as they are: a claim with a wrong field must not end the list and the
//! watch of all others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Claim;
use crate::resource::namespaced_resource;

/// An `IPAMClaim`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpamClaim {
    /// Group and version; in lists empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Kind; in lists empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Namespace, name, owner and so on.
    pub metadata: ObjectMeta,
    /// See [`IpamClaim::read`].
    #[serde(default)]
    pub spec: Value,
    /// See [`IpamClaim::read`].
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub status: Value,
}

impl IpamClaim {
    /// What it says.
    ///
    /// # Errors
    /// A field is missing or has another form.
    pub fn read(&self) -> Result<Claim, String> {
        Claim::read(&self.spec, &self.status)
    }
}

namespaced_resource!(IpamClaim);
