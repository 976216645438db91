//! [`ServiceCache`]: what the flow cache can be told and asked about services.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use api::Protocol;
use api::admin::Amount;

use super::{CacheError, Swept};

/// Where clients reach a port of a service, as a packet enters OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAddress {
    /// Address; for a node port one of the node.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Protocol. The flow cache has no SCTP.
    pub protocol: Protocol,
}

/// What an entry of a translated flow has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Identifies the flow: a hash of the entry's key.
    pub id: u64,
    /// When the flow was learned, on a clock that wraps. Another value is another count.
    pub learned: u32,
    /// Protocol.
    pub protocol: Protocol,
    /// Source and destination as the packets enter OVS.
    pub before: (SocketAddr, SocketAddr),
    /// Source and destination as they come out.
    pub after: (SocketAddr, SocketAddr),
    /// The service was kept off the cache: OVS has carried the packets.
    pub slow: bool,
    /// Packets and bytes since the flow was learned.
    pub amount: Amount,
}

/// Is called with an entry.
pub type See<'a> = &'a mut dyn FnMut(&Carried);

/// The flow cache's knowledge of services: addresses whose connections it keeps to OVS, and what entries of translated flows count.
///
/// # Errors
/// All methods fail when a map cannot be read or written ([`CacheError`]).
#[expect(clippy::missing_errors_doc, reason = "all fail alike, as the trait says")]
pub trait ServiceCache: std::fmt::Debug + Send + Sync {
    /// Sets the complete list of addresses whose connections take the slow path from now on. Entries that were made before stay, see
    /// [`Self::end_misplaced`]. On an error addresses may be missing.
    fn set_slow_services(&self, addresses: &BTreeSet<ServiceAddress>) -> Result<(), CacheError>;
    /// The list as the programs read it.
    fn slow_services(&self) -> Result<BTreeSet<ServiceAddress>, CacheError>;
    /// Removes the entries whose path is no longer their service's, and returns their number. Calls `see` for every translated entry.
    /// Iterates over all entries.
    fn end_misplaced(&self, see: See<'_>) -> Result<u64, CacheError>;
    /// Calls `see` for every translated entry. Iterates over all entries.
    fn each_carried(&self, see: See<'_>) -> Result<(), CacheError>;
    /// Sweeps as [`super::FlowCache::sweep`] does, in the same iteration; calls `see` for every translated entry before it is removed.
    fn sweep_seeing(&self, see: See<'_>) -> Result<Swept, CacheError>;
}
