//! The uplink migration to the bridge and back: with the kernel's own network stack and a real OVS, in network namespaces of the
//! test's own. Needs root and the OVS that `cargo xtask setup` installs.

#![allow(clippy::unwrap_used, reason = "a test")]

mod flows;
mod takeover;
mod world;
