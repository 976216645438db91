//! A network benchmark between two ends: `slipstream-traffic serve` and `slipstream-traffic run`.
//!
//! From the bottom up: [`statistics`] are pure; `protocol` is what the two ends say; `measure` reads clocks, counters of the kernel
//! and histograms; `net` has sockets; `server` and `load` are the two ends of traffic; `client` runs tests; `slices` interleaves
//! paths; `report` and `compare` write and read results; [`cli`] is the command line.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod cli;
mod client;
mod compare;
mod load;
mod measure;
mod net;
mod protocol;
pub mod report;
mod server;
mod slices;
pub mod statistics;

pub use client::PORT;
pub use measure::{CpuTimes, Host, Latency, Transactions, transactions};
pub use protocol::any::read_anything;
pub use protocol::control::Test;
pub use slices::{GoalOf, SHORTEST};
