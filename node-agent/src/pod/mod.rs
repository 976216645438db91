//! A pod's connection to OVS: the veth pair with its shim on the node's side, the interface in the pod's namespace.

mod error;
pub mod links;
pub mod pod_netns;

pub use error::AttachError;
