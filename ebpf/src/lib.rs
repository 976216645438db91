//! What Slipstream's eBPF programs and user space have in common.
//!
//! - [`layout`]: what is in the maps, byte for byte;
//! - [`packet`]: parsing of packets;
//! - [`decide`]: what is to be done with a packet, and what is learned from one.
//!
//! Nothing here calls the kernel. It compiles for the host as well as for BPF, so that everything that can be wrong about a packet
//! or a decision is tested with ordinary tests. The programs (`src/programs`, only in the object) fetch bytes and map values, call
//! into this library, and write.
//!
//! The library never panics, never allocates and never reads beyond a packet: bytes come through [`packet::Packet`], which answers
//! `None` past the end, or [`packet::Window`], which is asked for its length first.
#![no_std]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod decide;
pub mod layout;
pub mod packet;

pub use layout::reason::Reason;
