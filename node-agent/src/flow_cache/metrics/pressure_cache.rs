//! Rate limit for reading the fill level of the maps, which iterates over all entries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::flow_cache::cache::{CacheError, FlowCache, Pressure};

/// Maximum age of a cached reading.
const GOOD_FOR: Duration = Duration::from_secs(5);

type Read = Option<(Instant, Result<Vec<Pressure>, CacheError>)>;

/// The last reading of the fill levels. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct PressureCache {
    last: Arc<Mutex<Read>>,
}

impl PressureCache {
    /// Fill levels, at most 5 s old. May block while iterating over the maps.
    ///
    /// # Errors
    /// A map cannot be read; the error is cached as well.
    pub fn read(&self, cache: &dyn FlowCache) -> Result<Vec<Pressure>, CacheError> {
        self.read_at(cache, Instant::now())
    }

    fn read_at(&self, cache: &dyn FlowCache, now: Instant) -> Result<Vec<Pressure>, CacheError> {
        let mut last = self.last.lock();
        if let Some((when, answer)) = &*last
            && now.saturating_duration_since(*when) < GOOD_FOR
        {
            return answer.clone();
        }
        let answer = cache.pressure();
        *last = Some((now, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_cache::fake::Fake;

    #[test]
    fn the_maps_are_walked_once_in_five_seconds_however_often_one_asks() {
        let (fake, cache, start) = (Fake::default(), PressureCache::default(), Instant::now());
        let read = |seconds| cache.read_at(&fake, start + Duration::from_secs(seconds)).unwrap();
        for second in 0..5 {
            assert_eq!(read(second).first().map(|p| p.map), Some("FLOWS"));
        }
        assert_eq!(*fake.walks.lock(), 1);
        read(5);
        assert_eq!(*fake.walks.lock(), 2);
    }
}
