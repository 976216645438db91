//! The CNI executable and configuration on the node: written once ADD can be served, kept against others, and the node's
//! `NetworkUnavailable` condition.

pub mod files;
pub mod guard;
pub mod in_use;
