//! Installation of CNI plugin executable and configuration: written once ADD can be served, restored when changed, and reported as a
//! condition of the Node object.

pub mod configurations;
pub mod files;
pub mod guard;
pub mod in_use;
pub mod multus;
