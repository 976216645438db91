//! Lets user space put the map types into maps.
#![allow(unsafe_code, reason = "aya::Pod is an unsafe marker trait; the types' layout is asserted in `maps`")]

use crate::maps::{Config, Port, PortCounters, TunnelCounters, TunnelKey};

// SAFETY: repr(C), integers only, padding is an explicit field, size asserted.
unsafe impl aya::Pod for Config {}
// SAFETY: repr(C), integers and byte arrays only, padding is an explicit field, size asserted.
unsafe impl aya::Pod for Port {}
// SAFETY: repr(C), four u64.
unsafe impl aya::Pod for PortCounters {}
// SAFETY: repr(C), 16 bytes and a u32, no padding (size asserted).
unsafe impl aya::Pod for TunnelKey {}
// SAFETY: repr(C), four u64.
unsafe impl aya::Pod for TunnelCounters {}
