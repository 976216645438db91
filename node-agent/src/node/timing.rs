//! How long each step of a call took.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde::Serialize;

/// How many finished calls are kept for `/debug/adds`.
const KEPT: usize = 1000;

/// The steps of one call.
#[derive(Debug)]
pub struct Steps {
    start: Instant,
    list: Vec<(&'static str, Duration)>,
}

/// One finished call, as shown.
#[derive(Debug, Clone, Serialize)]
pub struct Finished {
    /// `ADD` or `DEL`.
    pub command: &'static str,
    /// The sandbox.
    pub container: String,
    /// `NAMESPACE/NAME`, where known.
    pub pod: String,
    /// 0, or the error's code.
    pub code: u32,
    /// Milliseconds from the executable's start until the reply was ready.
    pub total_ms: f64,
    /// Step and milliseconds, in the order they ended. Some run side by side.
    pub steps: Vec<(&'static str, f64)>,
}

/// The last calls. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    calls: Arc<Mutex<VecDeque<Finished>>>,
}

impl Steps {
    /// Starts the clock. `started_ns`: when the executable started, nanoseconds since the epoch; 0 if unknown.
    pub fn new(started_ns: u64) -> Self {
        let mut steps = Self { start: Instant::now(), list: Vec::new() };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let before = now.checked_sub(Duration::from_nanos(started_ns)).filter(|_| started_ns > 0);
        // A clock that was set in between gives nonsense: leave that out.
        if let Some(before) = before.filter(|d| *d < Duration::from_secs(600)) {
            steps.start = steps.start.checked_sub(before).unwrap_or(steps.start);
            steps.add("executable", before);
        }
        steps
    }

    /// Records a step.
    pub fn add(&mut self, step: &'static str, took: Duration) {
        self.list.push((step, took));
    }

    /// Does `work` and records it.
    pub async fn time<T>(&mut self, step: &'static str, work: impl Future<Output = T>) -> T {
        let (done, took) = timed(work).await;
        self.add(step, took);
        done
    }

    /// Since the executable started.
    pub fn total(&self) -> Duration {
        self.start.elapsed()
    }

    /// What was recorded.
    pub fn list(&self) -> &[(&'static str, Duration)] {
        &self.list
    }
}

/// Does `work` and says how long it took.
pub async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let done = work.await;
    (done, start.elapsed())
}

impl Journal {
    /// Keeps a finished call.
    pub fn push(&self, call: Finished) {
        let mut calls = self.calls.lock();
        if calls.len() == KEPT {
            calls.pop_front();
        }
        calls.push_back(call);
    }

    /// The last calls, oldest first.
    pub fn list(&self) -> Vec<Finished> {
        self.calls.lock().iter().cloned().collect()
    }
}

/// Milliseconds with a fraction.
pub fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}
