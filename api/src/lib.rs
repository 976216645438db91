//! The contract between Slipstream's binaries: annotations on Kubernetes objects, names of OVN objects, addresses derived
//! from other addresses, which pod serves a node's host port, services and their endpoints, networks beside the cluster's, reading Kubernetes objects leniently,
//! and the request that the CNI executable sends to the node agent. No I/O but in `settings`, which reads a file and asks OVS.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod addr;
pub mod admin;
pub mod annotation;
#[cfg(feature = "certificate")]
pub mod certificate;
pub mod cluster_network;
pub mod cni;
pub mod error;
pub mod hash;
pub mod host_port;
pub mod ipam_claim;
#[cfg(feature = "kubernetes")]
pub mod lenient;
pub mod mac;
pub mod multi_policy;
pub mod network_attachment;
mod object;
pub mod onap_network;
pub mod ovn_name;
pub mod pod_attachments;
#[cfg(feature = "kubernetes")]
pub mod problem;
mod protocol;
mod quote;
#[cfg(feature = "kubernetes")]
mod resource;
#[cfg(feature = "kubernetes")]
pub mod service;
#[cfg(feature = "clap")]
pub mod settings;
pub mod virtual_network;

#[cfg(feature = "kubernetes")]
pub use lenient::Lenient;
pub use mac::MacAddr;
pub use object::NamespacedName;
pub use protocol::Protocol;
