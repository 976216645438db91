//! The kind `onapNetwork`, the form that virtual networks had before there was [`crate::virtual_network`]. Programs of that time wrote it
//! without an API group, which the API server has no place for; it is in the group of the same programs' annotations here.

#[cfg(feature = "kubernetes")]
mod object;

#[cfg(feature = "kubernetes")]
pub use object::OnapNetwork;

pub use crate::virtual_network::legacy::KIND;

/// API group of the resource.
pub const GROUP: &str = "k8s.plugin.opnfv.org";
/// Version of the resource.
pub const VERSION: &str = "v1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "k8s.plugin.opnfv.org/v1";
/// Name of the resource in URLs.
pub const PLURAL: &str = "onapnetworks";
