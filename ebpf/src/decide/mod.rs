//! Decisions: what is to be done with a packet, as pure functions of the packet, the entry, the configuration and the clock. The
//! programs call them with what they find in packets and maps; tests on the host call them with anything.
//!
//! A packet from a pod or from the tunnel:
//! - [`admit`]: by the gate, the endpoint and the packet alone;
//! - [`connection`]: what TCP's SYN, FIN and RST do;
//! - [`forward`]: by its entry, which [`age`] may have something to say about, and the entry of the other direction for TCP;
//! - [`seen`]: whether it is the first one of a UDP flow;
//! - [`xdp`]: whether it goes back out of the uplink before the kernel has made a buffer of it;
//! - [`peer`]: what is known of the node that it comes from;
//! - [`note`] and [`tag`]: what is remembered of it while it is inside OVS, and how it is found again.
//!
//! A packet that comes out of OVS:
//! - [`learn`]: what is learned from it;
//! - [`scope`]: whether something that concerns it has changed meanwhile, which is asked on the way in too;
//! - [`service`]: whether its service is kept off the cache;
//! - [`wiring`]: where it goes on to.

pub mod admit;
pub mod age;
pub mod connection;
pub mod forward;
pub mod learn;
pub mod note;
pub mod peer;
pub mod scope;
pub mod seen;
pub mod service;
pub mod tag;
pub mod tuple;
pub mod wiring;
pub mod xdp;

use crate::layout::maps::Config;

/// What a decision is taken by, besides the packet and the entry. Gate, epoch and change are copies, as user space changes them at any time and
/// a decision must see one value.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Times and limits.
    pub config: &'a Config,
    /// `GATE_*` bits.
    pub gate: u32,
    /// The node's epoch.
    pub epoch: u32,
    /// Number of the last change of a part of OVS's tables.
    pub change: u32,
    /// The time in ticks.
    pub now: u32,
}
