//! Expected key size, value size and capacity of every map. Pinned maps are opened by name only, so these are verified before use.

use std::path::Path;

use aya::maps::MapInfo;
use ebpf::layout::{
    flow::{Conn, EgressFlow, EgressKey, IngressFlow, IngressKey, Note, Slot, Tuple4, Tuple6},
    maps::{
        Budget, Config, EVENTS_BYTES, FLOWS6_PART, NOTES as NOTE_SLOTS, PENDING as PENDING_SIZE,
        PORT_ARRAY_SIZE, PORT_HASH_SIZE, PORT_SLOTS, Port, PortCounters, REMOTES as REMOTE_SLOTS,
        TUNNEL_SLOTS, TunnelCounters, TunnelKey,
    },
    reason::REASON_SLOTS,
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
pub(super) const REASONS: &str = "REASONS";
pub(super) const EVENTS: &str = "EVENTS";
pub(super) const FLOW_EGRESS: &str = "FLOW_EGRESS";
pub(super) const FLOW_EGRESS6: &str = "FLOW_EGRESS6";
pub(super) const FLOW_INGRESS: &str = "FLOW_INGRESS";
pub(super) const FLOW_INGRESS6: &str = "FLOW_INGRESS6";
pub(super) const CONNS: &str = "CONNS";
pub(super) const CONNS6: &str = "CONNS6";

/// Maps whose size is that of the flow cache: name, and whether for IPv6.
pub(super) const SIZED: [(&str, bool); 6] = [
    (FLOW_EGRESS, false),
    (FLOW_EGRESS6, true),
    (FLOW_INGRESS, false),
    (FLOW_INGRESS6, true),
    (CONNS, false),
    (CONNS6, true),
];

/// Entries of a map of the flow cache that has `flows` of them for IPv4.
pub(super) const fn size(flows: u32, six: bool) -> u32 {
    if six { flows / FLOWS6_PART } else { flows }
}

/// Name, bytes of key, bytes of value, number of entries.
type Shape = (&'static str, usize, usize, u32);

fn shapes(flows: u32) -> Vec<Shape> {
    let of = |name, key, value| {
        let six = SIZED.iter().any(|(sized, six)| *sized == name && *six);
        (name, key, value, size(flows, six))
    };
    vec![
        (CONFIG, 4, size_of::<Config>(), 1),
        (ENDPOINTS, 4, size_of::<Port>(), PORT_ARRAY_SIZE),
        (ENDPOINTS_HIGH, 4, size_of::<Port>(), PORT_HASH_SIZE),
        (ENDPOINT_STATS, 4, size_of::<PortCounters>(), PORT_SLOTS),
        (TUNNELS, size_of::<TunnelKey>(), 4, TUNNEL_SLOTS),
        (TUNNEL_FREE, 0, 4, TUNNEL_SLOTS),
        (TUNNEL_STATS, 4, size_of::<TunnelCounters>(), TUNNEL_SLOTS),
        (REMOTES, 4, 4, REMOTE_SLOTS),
        (REASONS, 4, size_of::<u64>(), REASON_SLOTS),
        of(FLOW_EGRESS, size_of::<EgressKey<Tuple4>>(), size_of::<EgressFlow>()),
        of(FLOW_EGRESS6, size_of::<EgressKey<Tuple6>>(), size_of::<EgressFlow>()),
        of(FLOW_INGRESS, size_of::<IngressKey<Tuple4>>(), size_of::<IngressFlow>()),
        of(FLOW_INGRESS6, size_of::<IngressKey<Tuple6>>(), size_of::<IngressFlow>()),
        of(CONNS, size_of::<EgressKey<Tuple4>>(), size_of::<Conn>()),
        of(CONNS6, size_of::<EgressKey<Tuple6>>(), size_of::<Conn>()),
        ("PENDING", size_of::<Tuple4>(), size_of::<Note>(), PENDING_SIZE),
        ("PENDING6", size_of::<Tuple6>(), size_of::<Note>(), PENDING_SIZE / FLOWS6_PART),
        ("NOTES", 4, size_of::<Slot<Tuple4>>(), NOTE_SLOTS),
        ("NOTES6", 4, size_of::<Slot<Tuple6>>(), NOTE_SLOTS),
        ("NOTE_CURSOR", 4, 4, 1),
        ("BUDGET", 4, size_of::<Budget>(), 1),
        ("SCRATCH", 4, size_of::<EgressFlow>(), 1),
        (EVENTS, 0, 0, EVENTS_BYTES),
    ]
}

/// Removes pinned maps that do not have the shape of this agent's, so that loading creates new ones. `flows`: entries of the flow
/// cache.
pub(super) fn remove_misshapen(maps: &Path, flows: u32) -> Result<(), Error> {
    for (name, key, value, entries) in shapes(flows) {
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
