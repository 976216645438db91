//! Waiting times between connection attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Bounds of the wait after a failed round over all endpoints; it doubles from `min` to `max` and is jittered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// First wait.
    pub min: Duration,
    /// Longest wait.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { min: Duration::from_millis(100), max: Duration::from_secs(8) }
    }
}

impl Backoff {
    /// Wait after the given number of failures in a row (from 1): between half of the doubled time and all of it.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let doubled = self.min.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.max);
        // A hasher with fresh random keys is all the randomness that jitter needs.
        let random = RandomState::new().hash_one(failures) % 1024;
        doubled / 2 + (doubled / 2048).saturating_mul(u32::try_from(random).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_maximum_and_keep_within_their_half() {
        let backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(2) };
        for (failures, full) in [(1, 100), (2, 200), (3, 400), (5, 1600), (6, 2000), (1000, 2000)] {
            let full = Duration::from_millis(full);
            let wait = backoff.wait(failures);
            assert!(wait >= full / 2 && wait <= full, "{failures}: {wait:?}");
        }
    }
}
