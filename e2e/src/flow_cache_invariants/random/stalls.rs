//! Moments in which this machine stood still: a virtual machine may get no processor for seconds. No datapath forwards then, and no
//! bound can be held, so times are judged on a clock that stands still with the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::flow_cache_invariants::nanos;
use testbed::tools::load::{Arrival, now};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// A look that is later than this by so much has met a stall. On a busy machine a thread that slept gets a processor within a few
/// times of the scheduler's latency (some 10 ms).
const LATE: Duration = Duration::from_millis(250);

/// A thread that sleeps, and sees how late it wakes.
pub(super) struct Watch {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Stalls>,
}

impl Watch {
    /// Begins to look.
    pub(super) fn start() -> Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&end);
        let look = move || {
            let mut stalls = Stalls::default();
            while !told.load(Ordering::Relaxed) {
                let due = now() + nanos(PAUSE);
                thread::sleep(PAUSE);
                stalls.woke(due, now());
            }
            stalls
        };
        let thread = thread::Builder::new().name("stalls".into()).spawn(look).context("a thread")?;
        Ok(Self { end, thread })
    }

    /// What was seen.
    pub(super) fn end(self) -> Result<Stalls> {
        self.end.store(true, Ordering::Relaxed);
        let Ok(stalls) = self.thread.join() else { bail!("the thread that looks for stalls panicked") };
        Ok(stalls)
    }
}

/// Stalls from when to when, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stalls(Vec<(u64, u64)>);

impl Stalls {
    fn woke(&mut self, due: u64, at: u64) {
        if at.saturating_sub(due) > nanos(LATE) {
            self.0.push((due, at));
        }
    }

    /// The time on a clock that stands still in stalls.
    pub(super) fn running(&self, time: u64) -> u64 {
        let stood = self.0.iter().map(|&(from, to)| time.min(to).saturating_sub(from)).sum();
        // What is said to have been always, or to be forever, stays so.
        if time == u64::MAX { time } else { time.saturating_sub(stood) }
    }

    pub(super) fn arrival(&self, arrival: Arrival) -> Arrival {
        let [sent, began, at] = [arrival.sent, arrival.began, arrival.at].map(|time| self.running(time));
        Arrival { sent, began, at, ..arrival }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.iter().map(|(from, to)| to - from).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_much_too_late_is_a_stall_and_the_clock_stands_still_in_it() {
        let second = nanos(Duration::from_secs(1));
        let mut stalls = Stalls::default();
        stalls.woke(10 * second, 10 * second + second / 5);
        assert_eq!(stalls, Stalls::default());
        stalls.woke(20 * second, 23 * second);
        stalls.woke(30 * second, 31 * second);
        assert_eq!((stalls.count(), stalls.total()), (2, Duration::from_secs(4)));
        for (time, running) in [(0, 0), (20, 20), (21, 20), (23, 20), (24, 21), (30, 27), (31, 27), (40, 36)]
        {
            assert_eq!(stalls.running(time * second), running * second, "at {time} s");
        }
        assert_eq!(stalls.running(u64::MAX), u64::MAX);
    }
}
