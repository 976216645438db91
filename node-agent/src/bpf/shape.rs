//! The shape that every map must have. A pinned map is opened by its name alone; that it has our key, value and size
//! is checked here, as reading a map of another shape would give nonsense.

use std::path::Path;

use aya::maps::MapInfo;
use ebpf::{
    maps::{
        Config, PORT_ARRAY_SIZE, PORT_HASH_SIZE, PORT_SLOTS, Port, PortCounters, TUNNEL_SLOTS,
        TunnelCounters, TunnelKey,
    },
    reason::REASON_SLOTS,
};

use super::{Error, pins};

pub(super) const CONFIG: &str = "CONFIG";
pub(super) const ENDPOINTS: &str = "ENDPOINTS";
pub(super) const ENDPOINTS_HIGH: &str = "ENDPOINTS_HIGH";
pub(super) const ENDPOINT_STATS: &str = "ENDPOINT_STATS";
pub(super) const TUNNEL_STATS: &str = "TUNNEL_STATS";
pub(super) const REASONS: &str = "REASONS";

/// Name, bytes of key, bytes of value, number of entries.
const SHAPES: [(&str, usize, usize, u32); 6] = [
    (CONFIG, 4, size_of::<Config>(), 1),
    (ENDPOINTS, 4, size_of::<Port>(), PORT_ARRAY_SIZE),
    (ENDPOINTS_HIGH, 4, size_of::<Port>(), PORT_HASH_SIZE),
    (ENDPOINT_STATS, 4, size_of::<PortCounters>(), PORT_SLOTS),
    (TUNNEL_STATS, size_of::<TunnelKey>(), size_of::<TunnelCounters>(), TUNNEL_SLOTS),
    (REASONS, 4, size_of::<u64>(), REASON_SLOTS),
];

/// Removes pinned maps that do not have the shape of this agent's, so that loading makes new ones.
pub(super) fn remove_misshapen(maps: &Path) -> Result<(), Error> {
    for (name, key, value, entries) in SHAPES {
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
            tracing::warn!(map = name, path = %path.display(), "pinned map has another shape than this agent's; making a new one");
            pins::remove_pin(&path)?;
        }
    }
    Ok(())
}
