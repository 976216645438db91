//! Access to map `CONFIG`: one value with all settings and state, so that a program needs a single lookup.
//!
//! The value is always written completely. All changes go through [`Control::change`], serialized by a lock that is held for two system
//! calls only, never during the attachment of a pod.

use std::{path::Path, sync::Arc};

use aya::maps::{Array, Map, MapData, MapError};
use ebpf::layout::maps::Config;
use parking_lot::Mutex;

use super::{Error, config::next_epoch, shape::CONFIG};

/// Handle of the map; clones share the lock.
#[derive(Clone)]
pub(super) struct Control(Arc<Mutex<Array<MapData, Config>>>);

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Control").finish()
    }
}

fn failed(action: &'static str, source: MapError) -> Error {
    Error::map(CONFIG, action, source)
}

impl Control {
    /// Opens the pinned map.
    ///
    /// # Errors
    /// The map does not exist.
    pub(super) fn open(maps: &Path) -> Result<Self, Error> {
        let data = MapData::from_pin(maps.join(CONFIG)).map_err(|source| failed("open", source))?;
        let map = Array::try_from(Map::Array(data)).map_err(|source| failed("open", source))?;
        Ok(Self(Arc::new(Mutex::new(map))))
    }

    /// Current value.
    ///
    /// # Errors
    /// The map cannot be read.
    pub(super) fn get(&self) -> Result<Config, Error> {
        self.0.lock().get(&0, 0).map_err(|source| failed("read", source))
    }

    /// Changes the value and returns the new one; writes only differences.
    ///
    /// # Errors
    /// The map cannot be read or written.
    pub(super) fn change(&self, change: impl FnOnce(Config) -> Config) -> Result<Config, Error> {
        let mut map = self.0.lock();
        let old = map.get(&0, 0).map_err(|source| failed("read", source))?;
        let new = change(old);
        if new != old {
            map.set(0, new, 0).map_err(|source| failed("write", source))?;
        }
        Ok(new)
    }

    /// Invalidates all entries; returns the new epoch.
    ///
    /// # Errors
    /// The map cannot be read or written.
    pub(super) fn invalidate(&self) -> Result<u32, Error> {
        Ok(self.change(|config| Config { epoch: next_epoch(config.epoch), ..config })?.epoch)
    }
}
