//! Layout of the maps: what the programs and user space both read and write, byte for byte.
//!
//! - [`maps`]: the configuration, ports and counters, and how large each map is;
//! - [`flow`]: the flow cache's keys and values, and notes of packets that are inside OVS;
//! - [`service`]: addresses of services that are kept off the flow cache;
//! - [`scope`]: what a change of OVS's tables can concern;
//! - [`reason`]: what the slots of the map `REASONS` count.
//!
//! Every type is `repr(C)` with explicit padding and an asserted size. A pinned map outlives the agent that made it, so a change of
//! size, order or meaning needs another [`maps::LAYOUT`].

pub mod flow;
pub mod maps;
pub mod reason;
pub mod scope;
pub mod service;

#[cfg(feature = "user")]
mod user;
