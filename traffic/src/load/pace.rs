//! When something is due, at a rate that all threads of a test share.
//!
//! What is due and finds no thread free is late, and the time that it waited is a part of its latency: so a stall of the other end
//! is seen by all that should have been asked meanwhile, not by one (coordinated omission).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The last part of a wait is spent looking at the clock: a timer would come late by about so much.
const LOOK: Duration = Duration::from_micros(60);

/// Tickets, each with its time.
#[derive(Debug)]
pub(super) struct Pace {
    start: Instant,
    interval: Option<Duration>,
    next: AtomicU64,
}

impl Pace {
    /// So many a second; `None`: always now.
    pub(super) fn new(rate: Option<f64>) -> Self {
        let interval = rate.and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok());
        Self { start: Instant::now(), interval, next: AtomicU64::new(0) }
    }

    /// Waits until the next is due, and answers when that was. `None` if `stop` says so meanwhile.
    pub(super) fn wait(&self, stop: impl Fn() -> bool) -> Option<Instant> {
        let Some(interval) = self.interval else { return Some(Instant::now()) };
        let due = self.start + due(interval, self.next.fetch_add(1, Relaxed));
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if stop() {
                return None;
            }
            if left > LOOK {
                std::thread::sleep((left - LOOK).min(Duration::from_millis(50)));
            } else {
                std::hint::spin_loop();
            }
        }
        Some(due)
    }
}

/// When the ticket with a number is due, after the start.
fn due(interval: Duration, number: u64) -> Duration {
    let nanos = interval.as_nanos().saturating_mul(u128::from(number));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_due_one_after_another_and_none_is_skipped() {
        assert_eq!(due(Duration::from_micros(10), 7), Duration::from_micros(70));
        let pace = Pace::new(Some(1e6));
        let first = pace.wait(|| false).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        // After a stall the next ones are due at their own time, long past.
        let second = pace.wait(|| false).unwrap();
        assert_eq!(second - first, Duration::from_micros(1));
    }

    #[test]
    fn a_wait_ends_when_it_is_no_longer_wanted() {
        let pace = Pace::new(Some(0.001));
        assert!(pace.wait(|| true).is_some(), "the first is due at once");
        assert_eq!(pace.wait(|| true), None);
    }
}
