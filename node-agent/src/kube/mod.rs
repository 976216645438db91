//! Kubernetes API: client, the watch of this node's pods, and annotations and conditions of the Node object.

pub mod announce;
pub mod chassis_certificate;
pub mod client;
pub mod cluster_network;
pub mod host_ports;
pub mod node_annotations;
pub mod pods;
pub mod service_names;
