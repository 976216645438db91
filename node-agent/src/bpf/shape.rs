//! Expected key size, value size and capacity of every map. Pinned maps are opened by name only, so these are verified before use.

use std::path::Path;

use aya::maps::MapInfo;
use ebpf::layout::{
    flow::{Entry, Note, Tuple4, Tuple6},
    maps::{
        Budget, Config, Cursors, EVENTS_BYTES, FLOWS6_PART, NOTES, NOTES6, PEERS, PORT_ARRAY_SIZE,
        PORT_HASH_SIZE, PORT_SLOTS, Peer, Port, PortCounters, REMOTES as REMOTE_SLOTS, SEEN, TUNNEL_SLOTS,
        TunnelCounters, TunnelKey,
    },
    reason::REASON_SLOTS,
    scope::SCOPES as SCOPE_BUCKETS,
    service::{SLOW_SERVICES as SERVICE_SLOTS, ServiceKey},
};

use super::{Error, pins};

pub(super) const CONFIG: &str = "CONFIG";
pub(super) const ENDPOINTS: &str = "ENDPOINTS";
pub(super) const ENDPOINTS_HIGH: &str = "ENDPOINTS_HIGH";
pub(super) const ENDPOINT_STATS: &str = "ENDPOINT_STATS";
pub(super) const TUNNELS: &str = "TUNNELS";
pub(super) const TUNNEL_FREE: &str = "TUNNEL_FREE";
pub(super) const TUNNEL_STATS: &str = "TUNNEL_STATS";
pub(super) const REMOTES: &str = "REMOTES";
pub(super) const SCOPES: &str = "SCOPES";
pub(super) const SLOW_SERVICES: &str = "SLOW_SERVICES";
pub(super) const REASONS: &str = "REASONS";
pub(super) const EVENTS: &str = "EVENTS";
pub(super) const FLOWS: &str = "FLOWS";
pub(super) const FLOWS6: &str = "FLOWS6";

/// Maps whose size is that of the flow cache: name, and whether for IPv6.
pub(super) const SIZED: [(&str, bool); 2] = [(FLOWS, false), (FLOWS6, true)];

/// Entries of the flow cache's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Entries of the cluster's first address family; the other one has a part of it.
    pub(super) flows: u32,
    /// The first family is IPv6.
    pub(super) ipv6_first: bool,
}

impl Sizes {
    /// Entries of the map for IPv4 or IPv6.
    pub(super) const fn of(self, six: bool) -> u32 {
        if six == self.ipv6_first { self.flows } else { self.flows / FLOWS6_PART }
    }
}

/// Name, bytes of key, bytes of value, number of entries.
type Shape = (&'static str, usize, usize, u32);

fn shapes(sizes: Sizes) -> Vec<Shape> {
    let of = |name, key, value| {
        let six = SIZED.iter().any(|(sized, six)| *sized == name && *six);
        (name, key, value, sizes.of(six))
    };
    vec![
        (CONFIG, 4, size_of::<Config>(), 1),
        (SCOPES, 4, 4, SCOPE_BUCKETS),
        (ENDPOINTS, 4, size_of::<Port>(), PORT_ARRAY_SIZE),
        (ENDPOINTS_HIGH, 4, size_of::<Port>(), PORT_HASH_SIZE),
        (ENDPOINT_STATS, 4, size_of::<PortCounters>(), PORT_SLOTS),
        (TUNNELS, size_of::<TunnelKey>(), 4, TUNNEL_SLOTS),
        (TUNNEL_FREE, 0, 4, TUNNEL_SLOTS),
        (TUNNEL_STATS, 4, size_of::<TunnelCounters>(), TUNNEL_SLOTS),
        (REMOTES, 4, 4, REMOTE_SLOTS),
        (SLOW_SERVICES, size_of::<ServiceKey>(), 4, SERVICE_SLOTS),
        (REASONS, 4, size_of::<u64>(), REASON_SLOTS),
        of(FLOWS, size_of::<Tuple4>(), size_of::<Entry<Tuple4>>()),
        of(FLOWS6, size_of::<Tuple6>(), size_of::<Entry<Tuple6>>()),
        ("NOTES", 4, size_of::<Note<Tuple4>>(), NOTES),
        ("NOTES6", 4, size_of::<Note<Tuple6>>(), NOTES6),
        ("NOTE_CURSOR", 4, size_of::<Cursors>(), 1),
        ("NOTE_BUDGET", 4, size_of::<Budget>(), PORT_SLOTS),
        ("BUDGET", 4, size_of::<Budget>(), 2),
        ("SEEN", 4, size_of::<u64>(), SEEN),
        ("PEERS", 4, size_of::<Peer>(), PEERS),
        ("SCRATCH", 4, size_of::<Entry<Tuple4>>(), 1),
        ("SCRATCH6", 4, size_of::<Entry<Tuple6>>(), 1),
        (EVENTS, 0, 0, EVENTS_BYTES),
    ]
}

/// Removes pinned maps that do not have the shape of this agent's, so that loading creates new ones.
pub(super) fn remove_misshapen(maps: &Path, sizes: Sizes) -> Result<(), Error> {
    for (name, key, value, entries) in shapes(sizes) {
        let path = maps.join(name);
        if !path.exists() {
            continue;
        }
        let fits = MapInfo::from_pin(&path).is_ok_and(|info| {
            usize::try_from(info.key_size()) == Ok(key)
                && usize::try_from(info.value_size()) == Ok(value)
                && info.max_entries() == entries
        });
        if !fits {
            tracing::warn!(map = name, path = %path.display(), "pinned map has other key size, value size or capacity than this agent's; creating a new one");
            pins::remove_pin(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_the_clusters_pods_has_the_larger_map() {
        let both = |ipv6_first| {
            let sizes = Sizes { flows: 4096, ipv6_first };
            (sizes.of(false), sizes.of(true))
        };
        assert_eq!(both(false), (4096, 1024));
        assert_eq!(both(true), (1024, 4096));
    }
}
