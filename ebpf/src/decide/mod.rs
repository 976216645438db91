//! Decisions: what is to be done with a packet, as pure functions of the packet, the entry, the configuration and the clock.

pub mod age;
pub mod pending;
pub mod tag;
pub mod wiring;
