//! The custom resource `VirtualNetwork`: a network beside the cluster's own, to which pods attach further interfaces
//! ([`crate::pod_attachments`]). Its fields, whether they make sense, its status, and the form that it had before
//! ([`legacy`]).

mod check;
pub mod legacy;
#[cfg(feature = "kubernetes")]
mod object;
mod spec;
mod status;

pub use check::{Checked, Limits, Subnet, check_name, overlap};
#[cfg(feature = "kubernetes")]
pub use object::VirtualNetwork;
pub use spec::{Ipam, Lifecycle, Localnet, Reach, Scope, SpecError, VirtualNetworkSpec};
pub use status::{Condition, VirtualNetworkStatus, condition};

/// API group of the resource.
pub const GROUP: &str = "slipstream.dev";
/// Version of the resource.
pub const VERSION: &str = "v1alpha1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "slipstream.dev/v1alpha1";
/// Kind of the resource.
pub const KIND: &str = "VirtualNetwork";
/// Name of the resource in URLs.
pub const PLURAL: &str = "virtualnetworks";
/// Finalizer by which the controller keeps a network while pods are attached to it.
pub const FINALIZER: &str = "slipstream.dev/virtual-network";
