//! The uplink: its selection, and the journaled migration of its addresses and routes to the gateway bridge and back.

pub mod find;
pub mod follow;
pub mod journal;
pub mod migration;
pub mod observed;
pub mod own;
pub mod role;
pub mod snapshot;
pub mod trial;
mod wiring;

pub use find::{AUTO, find};
