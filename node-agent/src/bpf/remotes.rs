//! Whose tunnelled packets OVS takes, as the programs look it up.

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

    /// Makes the map hold exactly these, whatever an agent before us left in it: first others go, then these come.
    ///
    /// # Errors
    /// The first that could not be removed or found no room; all others are done.
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

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.keys().filter(Result::is_ok).count()
    }
}
