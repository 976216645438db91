//! The uplink: which interface it is, moving its addresses and routes to the gateway bridge with a journal on disk, and the way
//! back.

pub mod find;
pub mod journal;
pub mod migration;
pub mod snapshot;
pub mod trial;

pub use find::{AUTO, find};
