//! Durations of CNI calls and of their steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde::Serialize;

/// Number of finished calls kept for `/debug/adds`.
const KEPT: usize = 1000;

/// Durations of the steps of a call in progress.
#[derive(Debug)]
pub struct Steps {
    start: Instant,
    list: Vec<(&'static str, Duration)>,
}

/// A finished call, as shown by `/debug/adds`.
#[derive(Debug, Clone, Serialize)]
pub struct Finished {
    /// `ADD` or `DEL`.
    pub command: &'static str,
    /// Container id of the sandbox.
    pub container: String,
    /// `NAMESPACE/NAME`, where known.
    pub pod: String,
    /// CNI error code; 0 for success.
    pub code: u32,
    /// Milliseconds from the start of the plugin process until the response was ready.
    pub total_ms: f64,
    /// Name and duration in milliseconds of each step, in the order of their ends. Some run concurrently.
    pub steps: Vec<(&'static str, f64)>,
}

/// The last finished calls. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    calls: Arc<Mutex<VecDeque<Finished>>>,
}

impl Steps {
    /// Starts the clock. `started_ns`: start of the plugin process in nanoseconds since the Unix epoch; 0 if unknown.
    pub fn new(started_ns: u64) -> Self {
        let mut steps = Self { start: Instant::now(), list: Vec::new() };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let before = now.checked_sub(Duration::from_nanos(started_ns)).filter(|_| started_ns > 0);
        // Implausible values, after the system clock was set, are ignored.
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

    /// Runs `work` and records its duration.
    pub async fn time<T>(&mut self, step: &'static str, work: impl Future<Output = T>) -> T {
        let (done, took) = timed(work).await;
        self.add(step, took);
        done
    }

    /// Time since the start of the plugin process.
    pub fn total(&self) -> Duration {
        self.start.elapsed()
    }

    /// Recorded steps.
    pub fn list(&self) -> &[(&'static str, Duration)] {
        &self.list
    }
}

/// Runs `work` and returns its duration.
pub async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let done = work.await;
    (done, start.elapsed())
}

impl Journal {
    /// Adds a finished call.
    pub fn push(&self, call: Finished) {
        let mut calls = self.calls.lock();
        if calls.len() == KEPT {
            calls.pop_front();
        }
        calls.push_back(call);
    }

    /// The last finished calls, oldest first.
    pub fn list(&self) -> Vec<Finished> {
        self.calls.lock().iter().cloned().collect()
    }
}

/// Converts a duration to milliseconds.
pub fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}
