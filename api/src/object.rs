//! Names of Kubernetes objects.

use std::fmt;
use std::str::FromStr;

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl NamespacedName {
    /// The object `name` of `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl FromStr for NamespacedName {
    type Err = String;

    /// Parses `NAMESPACE/NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self::new(namespace, name))
            }
            _ => Err(format!("`{text}` is no name of an object; write it as NAMESPACE/NAME")),
        }
    }
}

#[cfg(feature = "kubernetes")]
impl From<&k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta> for NamespacedName {
    /// Namespace and name from an object's metadata; empty where absent.
    fn from(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Self {
        Self::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_half_a_name_is_none() {
        let name = NamespacedName::new("shop", "web");
        assert_eq!(name.to_string().parse(), Ok(name));
        for text in ["web", "shop/", "/web", "shop/web/80", ""] {
            let error = text.parse::<NamespacedName>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("NAMESPACE/NAME"), "{error}");
        }
    }
}
