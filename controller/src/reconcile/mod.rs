//! From what is planned to what the database holds: keeps the wanted rows and edges of every unit, compares those that an
//! event touched with the northbound replica, and words the difference as one transaction.

pub mod actual;
pub mod diff;
pub mod foreign;
mod graph;
pub mod ownership;
pub mod repair;
pub mod shared;
pub mod wanted;

pub use actual::{ReplicaView, monitor_spec};
pub use diff::Changes;
pub use foreign::{Foreign, NotAdopted};
pub use wanted::{Touched, Wanted};
