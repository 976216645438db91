//! Connection of a pod to OVS: veth pair and shim on the host, interface in the pod's network namespace.

mod error;
pub mod links;
pub mod pod_netns;

pub use error::AttachError;
