//! Every ten seconds: removes expired entries from the maps, and adapts the refresh interval to the number of entries.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::cache::{CacheError, FlowCache, Pressure, Swept};
use super::services::Services;
use super::state::Shared;

/// Interval between two sweeps.
const PERIOD: Duration = Duration::from_secs(10);
/// Number of entries up to which the configured refresh interval applies; above, it grows in proportion.
const MANY_FLOWS: u64 = 50_000;
/// Longest refresh interval.
const LATEST_REFRESH: Duration = Duration::from_secs(10);

/// Sweeps the maps and adapts the refresh interval, every [`PERIOD`].
pub(super) async fn watch(shared: Arc<Shared>) {
    let Some(cache) = shared.cache.clone() else { return };
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The configured interval is the lower bound.
    let usual = shared.timing().refresh;
    loop {
        period.tick().await;
        let (reader, services) = (Arc::clone(&cache), shared.services().clone());
        let looked = tokio::task::spawn_blocking(move || look(&*reader, &services)).await;
        let looked = looked.unwrap_or_else(|error| Err(CacheError::Programs(error.to_string())));
        let Some(Swept { removed, maps }) = shared.check("sweep the maps", looked) else {
            continue;
        };
        if removed > 0 {
            tracing::debug!(removed, "expired entries removed from the maps");
        }
        let flows = flows(&maps);
        let mut timing = shared.timing();
        let refresh = refresh_for(usual, flows);
        if timing.refresh != refresh {
            tracing::info!(flows, ?refresh, "refresh interval changed");
            timing.refresh = refresh;
            if shared.check("set the refresh interval", cache.set_timing(timing)).is_some() {
                shared.set_timing(timing);
            }
        }
    }
}

/// Sweeps the maps; in a grace period, when entries are used beyond their deadlines, only counts them. May block.
fn look(cache: &dyn FlowCache, services: &Services) -> Result<Swept, CacheError> {
    if cache.gate()?.hold {
        return Ok(Swept { removed: 0, maps: cache.pressure()? });
    }
    services.sweep().unwrap_or_else(|| cache.sweep())
}

/// Number of entries of flows.
fn flows(maps: &[Pressure]) -> u64 {
    maps.iter().filter(|map| map.map.starts_with("FLOWS")).map(|map| map.entries).sum()
}

/// Refresh interval for `flows` entries: a whole multiple of `usual`, so that it does not change with every sweep.
fn refresh_for(usual: Duration, flows: u64) -> Duration {
    let times = u32::try_from(flows.div_ceil(MANY_FLOWS).max(1)).unwrap_or(u32::MAX);
    usual.saturating_mul(times).min(LATEST_REFRESH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_cache::fake::{Fake, PRESSURE};

    #[test]
    fn refresh_is_stretched_with_the_number_of_flows_up_to_a_limit() {
        let usual = crate::flow_cache::Timing::default().refresh;
        let seconds = |flows| refresh_for(usual, flows).as_secs();
        assert_eq!([seconds(0), seconds(50_000), seconds(50_001), seconds(150_001)], [2, 2, 4, 8]);
        assert_eq!(seconds(10_000_000), 10);
    }

    #[test]
    fn entries_of_both_families_count_and_those_of_other_maps_do_not() {
        let map = |map, entries| Pressure { map, entries, capacity: 262_144 };
        assert_eq!(flows(&[map("FLOWS", 40_000), map("FLOWS6", 20_000), map("TUNNELS", 9)]), 60_000);
        assert_eq!(flows(&PRESSURE), 3);
    }

    #[test]
    fn a_look_walks_the_maps_once_and_sweeps_unless_the_gate_holds() {
        for (holds, removed, counted, swept) in [(false, 2, 0, 1), (true, 0, 1, 0)] {
            let fake = Arc::new(Fake { holds, ..Fake::default() });
            let state = tempfile::tempdir().unwrap();
            let services = Services::new(Some(Arc::clone(&fake) as _), state.path()).unwrap();
            assert_eq!(look(&*fake, &services), Ok(Swept { removed, maps: PRESSURE.to_vec() }));
            assert_eq!((*fake.walks.lock(), *fake.sweeps.lock()), (counted, swept));
        }
    }
}
