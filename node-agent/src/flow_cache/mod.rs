//! The flow cache, as the agent controls it: sees that OVS has changed and invalidates what is cached, holds or closes the cache
//! while it cannot see, and decides which endpoints may use it.
//!
//! | file | what |
//! |---|---|
//! | `cache` | [`FlowCache`]: what the programs' maps can be told and asked; `bpf` implements it |
//! | `manager` | [`Manager`]: the handle that the rest of the agent holds |
//! | `invalidation` | what invalidates the cache, when it may learn, when it is on hold or closed; pure, time is passed in |
//! | `cause` | the causes of invalidation, as metrics count them |
//! | `sources/` | what tells of changes: br-int's flows, OVS's database, the underlay, connection tracking, revalidation |
//! | `eligibility/` | which endpoints may use the cache, and why others may not |
//! | `pressure`, `remotes` | keeping the maps from filling up, and the tunnels' other ends in them current |
//! | `collector`, `metrics`, `path_file` | what is exported to Prometheus, and the path that is kept on disk |

mod cache;
pub mod cause;
pub mod collector;
pub mod eligibility;
#[cfg(test)]
pub(crate) mod fake;
pub mod invalidation;
mod manager;
mod metrics;
mod path_file;
mod pressure;
pub mod pressure_cache;
mod remotes;
pub mod sources;
mod tasks;

pub use cache::*;
pub use manager::{Manager, Steering};
pub use path_file::StoreError;
pub use tasks::{Handles, Sabotage, Settings};
