//! Connection of a pod to OVS: veth pair, shim and eBPF programs on the host, interface in the pod's network namespace.

pub mod duplicates;
pub mod endpoints;
mod error;
pub mod links;
pub mod pod_netns;

pub use error::AttachError;
