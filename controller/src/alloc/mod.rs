//! Allocation: which ranges and number a node has, which address a pod has. Pure; what is kept lives in annotations.

pub mod ipam;
pub mod node;

pub use ipam::{Allocation, Ipam, IpamError};
pub use node::{Assignment, NodeAllocator, NodeError};
