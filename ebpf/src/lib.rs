//! What Slipstream's eBPF programs and user space have in common: the layout of the maps, the parsing of packets
//! and the decisions taken on them.
//!
//! This half of the package has no kernel in it. It compiles for the host as well as for BPF, so that everything
//! that can be wrong about a packet is tested here, with ordinary tests. The programs (`src/programs`) only fetch
//! bytes, call into this library and write counters.
//!
//! It never panics, never allocates and never reads beyond the packet: bytes come through [`parse::Packet`], which
//! answers `None` past the end.
#![no_std]

pub mod age;
pub mod flow;
pub mod maps;
pub mod parse;
pub mod pending;
pub mod reason;
pub mod tag;
pub mod verdict;
pub mod wire;

#[cfg(feature = "user")]
mod user;

pub use reason::Reason;
