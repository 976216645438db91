//! User half of the flow cache: invalidates entries when OVS changes, limits the cache to a grace period while OVS changes
//! are not monitored, and decides which endpoints are eligible.
//!
//! | file | what |
//! |---|---|
//! | `cache` | trait [`FlowCache`]: reads and writes the eBPF programs' maps; implemented by `bpf` |
//! | `manager` | [`Manager`]: handle for the rest of the agent; applies the state machine's decisions to the maps |
//! | `control` | trait [`CacheControl`]: what the admin socket asks of it |
//! | `invalidation` | state machine: when to invalidate, learn, use entries in a grace period, or stop; pure, time is passed in |
//! | `scoped` | its part for changes that concern some scopes only; pure |
//! | `scope_changes` | changes that concern some scopes only, on their way to the state machine |
//! | `local_ports` | which interface is which port of br-int: scopes as the programs know them |
//! | `cause` | causes of invalidation, as in metrics |
//! | `connections` | tracked connections that ended, and when to look for their entries; pure |
//! | `sources/` | event sources: flows of br-int, Open_vSwitch database, underlay, connection tracking, revalidators |
//! | `eligibility/` | which endpoints are eligible, and why others are not |
//! | `pressure`, `remotes` | periodic sweep of the maps and adaptive refresh interval; set of remote tunnel endpoints |
//! | `scope/` | which entries a change of br-int's flows can concern; pure |
//! | `services` | which services are kept off the cache ([`Services`]); `service_choices`: what was asked for, `service_file`: persisted on disk |
//! | `service_cache` | trait [`ServiceCache`]: what the maps are told and asked about services |
//! | `service_stats`, `service_collector` | sums by service and backend, pure; exported |
//! | `collector`, `metrics`, `path_file` | Prometheus metrics; the requested path, persisted on disk |

mod cache;
pub mod cause;
pub mod collector;
mod connections;
mod control;
pub mod eligibility;
#[cfg(test)]
pub(crate) mod fake;
mod gateway_monitor;
pub mod invalidation;
mod local_ports;
mod manager;
mod metrics;
mod path_file;
mod pressure;
pub mod pressure_cache;
mod remotes;
pub mod scope;
mod scope_changes;
mod scoped;
mod service_cache;
mod service_choices;
pub mod service_collector;
mod service_file;
mod service_stats;
mod services;
pub mod sources;
mod tasks;

pub use cache::*;
pub use connections::Connections;
pub use control::CacheControl;
pub use manager::Manager;
pub use path_file::StoreError;
pub use scoped::{Concerned, ScopeChange};
pub use service_cache::{Carried, See, ServiceAddress, ServiceCache};
pub use service_stats::{Backend, Sums, Totals, Use, use_of};
pub use services::{LONGEST_LOAN, ServiceError, Services};
pub use tasks::{FaultInjection, Handles, Settings};
