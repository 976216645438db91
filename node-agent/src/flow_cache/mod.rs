//! User half of the flow cache: invalidates entries when OVS changes, limits the cache to a grace period while OVS changes
//! are not monitored, and decides which endpoints are eligible.
//!
//! Each may use those before it:
//!
//! | directory or file | what |
//! |---|---|
//! | `cache/` | traits [`FlowCache`] and [`ServiceCache`]: reads and writes the eBPF programs' maps; implemented by `bpf`. Tracked connections that ended, and when to look for their entries |
//! | `scope/` | which entries a change of br-int's flows can concern; pure |
//! | `invalidation/` | state machine: when to invalidate, learn, use entries in a grace period, or stop; pure, time is passed in |
//! | `eligibility/` | rules: which endpoints are eligible, and why others are not; pure |
//! | `path_file` | the requested path, persisted on disk |
//! | `services/` | which services are kept off the cache ([`Services`]), what was asked for, persisted on disk; sums by service and backend |
//! | `metrics/` | Prometheus metrics |
//! | `state/` | what the tasks share: applies the state machine's decisions to the maps; ports of br-int, remote tunnel endpoints |
//! | `sources/` | event sources: flows of br-int, Open_vSwitch database, underlay, connection tracking, revalidators |
//! | `physical`, `decide`, `pressure` | evaluates the rules and writes the paths, those of physical networks first; periodic sweep of the maps and adaptive refresh interval |
//! | `manager/` | [`Manager`]: handle for the rest of the agent, its tasks, and trait [`CacheControl`]: what the admin socket asks of it |

mod cache;
mod decide;
pub mod eligibility;
#[cfg(test)]
pub(crate) mod fake;
pub mod invalidation;
mod manager;
pub mod metrics;
mod path_file;
mod physical;
mod pressure;
pub mod scope;
mod services;
pub mod sources;
mod state;

pub use cache::*;
pub use invalidation::Concerned;
pub use manager::Manager;
pub use manager::control::CacheControl;
pub use manager::tasks::{Handles, Settings};
pub use path_file::StoreError;
pub use services::{Backend, LONGEST_LOAN, ServiceError, Services, Sums, Totals, Use, use_of};
pub use sources::faults::FaultInjection;
