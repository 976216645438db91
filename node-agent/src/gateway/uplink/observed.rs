//! State of the gateway bridge in the kernel, and whether the journal has it.

use std::net::IpAddr;

use super::journal::Journal;
use super::snapshot::{SavedAddress, SavedRoute};

/// State of the bridge in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Number of the interface.
    pub index: u32,
    /// Administratively up.
    pub up: bool,
    /// The node's own addresses.
    pub addresses: Vec<SavedAddress>,
    /// Routes, except those of the kernel and of routing daemons.
    pub routes: Vec<SavedRoute>,
    /// Next hops of the best default route of each family, IPv4 first.
    pub hops: Vec<IpAddr>,
}

/// Whether there is nothing to record. Remaining lifetimes are ignored.
pub(super) fn is_recorded(journal: &Journal, seen: &Observed) -> bool {
    journal.bridge_index == Some(seen.index)
        && same(&journal.found.addresses, &seen.addresses, SavedAddress::is_same)
        && same(&journal.found.routes, &seen.routes, SavedRoute::is_same)
}

/// Whether two states are the same to the journal.
pub(super) fn is_alike(one: &Observed, other: &Observed) -> bool {
    one.index == other.index
        && one.hops == other.hops
        && same(&one.addresses, &other.addresses, SavedAddress::is_same)
        && same(&one.routes, &other.routes, SavedRoute::is_same)
}

/// Whether two lists have the same elements in any order.
fn same<T>(one: &[T], other: &[T], is_same: impl Fn(&T, &T) -> bool) -> bool {
    one.len() == other.len() && one.iter().all(|a| other.iter().any(|b| is_same(a, b)))
}
