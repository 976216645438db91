//! Removes the entries of connections that ended.

use std::net::SocketAddr;

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use ebpf::layout::flow::{Entry, STATE_CLOSING};

use super::{error::is_absent, flows::Five};
use crate::flow_cache::Connections;

/// Removes entries that are directions of `connections`, before OVS or after it; returns how many. `capacity` bounds the walk, as
/// for [`super::sweep::count`]. A closing entry stays: it carries nothing and prevents learning before the next SYN.
pub(super) fn end<T: Pod + Into<Five>>(
    map: &mut HashMap<MapData, T, Entry<T>>,
    capacity: usize,
    connections: &Connections,
) -> Result<u64, MapError>
where
    Entry<T>: Pod,
{
    let is_one = |five: Five| {
        connections.contains(
            five.protocol,
            SocketAddr::new(five.source, five.source_port),
            SocketAddr::new(five.destination, five.destination_port),
        )
    };
    // Removing while listing would begin the list anew.
    let mut ended = Vec::new();
    for key in map.keys().take(capacity) {
        let key = key?;
        match map.get(&key, 0) {
            Ok(entry) if entry.state == STATE_CLOSING => {}
            Ok(entry) => {
                if is_one(key.into()) || is_one(entry.after.into()) {
                    ended.push(key);
                }
            }
            // It may be evicted between listing its key and reading it.
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let mut removed = 0;
    for key in ended {
        match map.remove(&key) {
            Ok(()) => removed += 1,
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}
