//! Allocation: which ranges and number a node has, which address a pod has. Pure; what is kept lives in annotations.

pub mod ipam;
pub mod network;
pub mod node;
mod range;

pub use ipam::{Allocation, Ipam, IpamError};
pub use network::{Grant, GrantError, NetworkIpam, Owner, Wish};
pub use node::{Assignment, NodeAllocator, NodeError};
