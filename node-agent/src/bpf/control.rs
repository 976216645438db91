//! What steers the programs: the one value of `CONFIG`, settings and state together, so that a program finds all of it with one
//! look.
//!
//! It is written whole. All who change a part of it do so here, one after another; the lock is held for two system calls, so
//! nobody waits for one who attaches a pod.

use std::{path::Path, sync::Arc};

use aya::maps::{Array, Map, MapData, MapError};
use ebpf::maps::Config;
use parking_lot::Mutex;

use super::{Error, config::next_epoch, shape::CONFIG};

/// A handle; all of one datapath share the lock.
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
    /// It is not there.
    pub(super) fn open(maps: &Path) -> Result<Self, Error> {
        let data = MapData::from_pin(maps.join(CONFIG)).map_err(|source| failed("open", source))?;
        let map = Array::try_from(Map::Array(data)).map_err(|source| failed("open", source))?;
        Ok(Self(Arc::new(Mutex::new(map))))
    }

    /// What the programs see now.
    ///
    /// # Errors
    /// The map cannot be read.
    pub(super) fn get(&self) -> Result<Config, Error> {
        self.0.lock().get(&0, 0).map_err(|source| failed("read", source))
    }

    /// Changes it; what it is then. Without a difference nothing is written.
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

    /// Makes everything invalid that was learned; the new epoch.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) fn invalidate(&self) -> Result<u32, Error> {
        Ok(self.change(|config| Config { epoch: next_epoch(config.epoch), ..config })?.epoch)
    }
}
