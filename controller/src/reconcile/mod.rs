//! Reconciles the plan with the northbound database: keeps the desired rows and edges of every unit, compares those that an event
//! touched with the replica, and builds one transaction from the difference.

pub mod desired;
pub mod diff;
pub mod foreign;
mod graph;
pub mod leftovers;
pub mod observed;
pub mod repair;
pub mod shared;

pub use desired::{Desired, Touched};
pub use diff::Changes;
pub use foreign::{Foreign, NotAdopted};
pub use observed::{ReplicaView, monitor_spec};
