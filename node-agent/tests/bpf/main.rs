//! The real eBPF object in the real kernel, in network namespaces and a bpffs of the test's own.
//!
//! Needs root, and says so by failing: a run without the kernel proves nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flow_cache;
mod forwarder;
mod packets;
mod pins;
mod programs;
mod sandbox;
mod verifier;
mod wiring;
