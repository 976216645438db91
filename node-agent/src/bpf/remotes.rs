//! Map of remote tunnel endpoints whose packets may be learned from.

use std::{collections::BTreeSet, net::Ipv4Addr};

use aya::maps::{HashMap, Map, MapData, MapError};

use super::{Error, shape::REMOTES};

fn failed(action: &'static str, source: MapError) -> Error {
    Error::map(REMOTES, action, source)
}

/// The pinned map.
pub(super) struct Remotes(HashMap<MapData, u32, u32>);

impl Remotes {
    pub(super) fn new(data: MapData) -> Result<Self, Error> {
        HashMap::try_from(Map::HashMap(data)).map(Self).map_err(|source| failed("open", source))
    }

    /// Replaces the content of the map: removes other endpoints, then adds missing ones.
    ///
    /// # Errors
    /// The first endpoint that could not be removed or added; the others are still processed.
    pub(super) fn set(&mut self, wanted: &BTreeSet<Ipv4Addr>) -> Result<(), Error> {
        let wanted: BTreeSet<u32> =
            wanted.iter().map(|address| u32::from_ne_bytes(address.octets())).collect();
        let there: BTreeSet<u32> =
            self.0.keys().collect::<Result<_, _>>().map_err(|source| failed("list", source))?;
        let mut result = Ok(());
        for address in there.difference(&wanted) {
            result = result.and(self.0.remove(address).map_err(|source| failed("remove from", source)));
        }
        for address in wanted.difference(&there) {
            result = result.and(self.0.insert(address, 1, 0).map_err(|source| failed("write", source)));
        }
        result
    }

    /// Number of endpoints.
    pub(super) fn len(&self) -> usize {
        self.0.keys().filter(Result::is_ok).count()
    }
}
