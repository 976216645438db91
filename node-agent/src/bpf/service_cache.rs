//! [`ServiceCache`] on the pinned maps.

use std::collections::BTreeSet;
use std::hash::Hash;

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};
use ebpf::{
    decide::{
        service::{is_kept_off, is_slow},
        tuple::Tuple,
    },
    layout::{
        flow::{Entry, STATE_CLOSING, Tuple4, Tuple6},
        service::ServiceKey,
    },
};

use super::{
    Error,
    cache::PinnedCache,
    config::with_services,
    error::is_absent,
    flows::Five,
    shape::{FLOWS, FLOWS6},
    slow_services::{address, carried, key},
    sweep::{Walk, entry},
};
use crate::flow_cache::{CacheError, See, ServiceAddress, ServiceCache, Swept};

/// Removes entries whose path is not their service's, but not those of closed connections, which carry nothing; calls `see` with each that there is. `capacity`: as for
/// [`super::sweep::count`].
fn end_misplaced<T: Pod + Tuple>(
    map: &mut HashMap<MapData, T, Entry<T>>,
    capacity: usize,
    slow: &BTreeSet<ServiceKey>,
    see: &mut dyn FnMut(&T, &Entry<T>),
) -> Result<Walk, MapError>
where
    Entry<T>: Pod,
{
    let mut walk = Walk::default();
    // Removing while listing would begin the list anew.
    let mut misplaced = Vec::new();
    for key in map.keys().take(capacity) {
        let key = key?;
        let Some(found) = entry(map, &key)? else { continue };
        walk.stayed += 1;
        let is_right = is_slow(&key, &found.after, |key| slow.contains(key)) == is_kept_off(&found);
        if is_right || found.state == STATE_CLOSING {
            see(&key, &found);
        } else {
            misplaced.push(key);
        }
    }
    for key in misplaced {
        // It was in use until now: as late as possible.
        if let Some(found) = entry(map, &key)? {
            see(&key, &found);
        }
        match map.remove(&key) {
            Ok(()) => walk.removed += 1,
            // A program, a sweep or an eviction was first.
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    walk.stayed = walk.stayed.saturating_sub(walk.removed);
    Ok(walk)
}

impl PinnedCache {
    fn keep_off(&self, addresses: &BTreeSet<ServiceAddress>) -> Result<(), Error> {
        let keys: BTreeSet<ServiceKey> = addresses.iter().filter_map(key).collect();
        let mut map = self.slow_services.lock();
        // The gate last: a program that sees it finds the addresses.
        let done = map.set(&keys);
        let some = !keys.is_empty();
        self.control.change(|config| with_services(config, some))?;
        done
    }

    fn kept_off(&self) -> Result<BTreeSet<ServiceAddress>, Error> {
        Ok(self.slow_services.lock().list()?.iter().filter_map(address).collect())
    }

    /// Calls `see` with every entry, and ends those on the wrong path if `ends`.
    fn look(&self, ends: bool, see: See<'_>) -> Result<u64, Error> {
        let slow = self.slow_services.lock().list()?;
        Ok(self.look_into::<Tuple4>(FLOWS, ends.then_some(&slow), see)?
            + self.look_into::<Tuple6>(FLOWS6, ends.then_some(&slow), see)?)
    }

    fn look_into<T: Pod + Tuple + Into<Five> + Hash>(
        &self,
        name: &'static str,
        slow: Option<&BTreeSet<ServiceKey>>,
        see: See<'_>,
    ) -> Result<u64, Error>
    where
        Entry<T>: Pod,
    {
        let mut see = |key: &T, entry: &Entry<T>| carried(key, entry).iter().for_each(&mut *see);
        let (removed, _) = self.walk::<T, Entry<T>>(name, |map, capacity| match slow {
            Some(slow) => end_misplaced(map, capacity, slow, &mut see),
            None => {
                for key in map.keys().take(capacity) {
                    let key = key?;
                    if let Some(entry) = entry(map, &key)? {
                        see(&key, &entry);
                    }
                }
                Ok(Walk::default())
            }
        })?;
        Ok(removed)
    }
}

impl ServiceCache for PinnedCache {
    fn set_slow_services(&self, addresses: &BTreeSet<ServiceAddress>) -> Result<(), CacheError> {
        self.keep_off(addresses).map_err(CacheError::from)
    }

    fn slow_services(&self) -> Result<BTreeSet<ServiceAddress>, CacheError> {
        self.kept_off().map_err(CacheError::from)
    }

    fn end_misplaced(&self, see: See<'_>) -> Result<u64, CacheError> {
        self.look(true, see).map_err(CacheError::from)
    }

    fn each_carried(&self, see: See<'_>) -> Result<(), CacheError> {
        self.look(false, see).map(drop).map_err(CacheError::from)
    }

    fn sweep_seeing(&self, see: See<'_>) -> Result<Swept, CacheError> {
        self.sweep_all(see).map_err(CacheError::from)
    }
}
