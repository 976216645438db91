//! What must hold of every decision, whatever is in the maps and whatever comes: the laws of `docs/architecture.md` that the programs
//! stand for, on the host.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admit;
mod any;
mod connection;
mod encapsulation;
mod forward;
mod learn;
mod model;
mod scope;
mod service;
mod xdp;
