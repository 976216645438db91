//! The agent's side of the flow cache: sees that OVS has changed and makes what is cached invalid, holds or closes the
//! cache while it cannot see, and decides which endpoints may use it. What it steers through is
//! [`crate::fast_path::FastPath`], which `bpf` implements.
//!
//! `engine` has the rules of invalidation, `exclude` those of who stays out and `effects` what br-int's flows say to that, all
//! without I/O. `control` is the handle
//! that the rest of the agent holds. `monitor`, `underlay` and `tasks` are the sources of changes, `revalidation` says when OVS has
//! followed one. `pressure` keeps the maps from filling up.

mod control;
mod decide;
pub mod effects;
pub mod engine;
pub mod exclude;
mod metrics;
pub mod monitor;
pub mod openflow;
mod pressure;
mod remotes;
mod revalidation;
mod source;
pub mod status;
mod store;
mod tasks;
mod tracking;
mod underlay;

pub use control::Fastpath;
pub use store::StoreError;
pub use tasks::{Places, Sabotage};
