//! What the test bed says to the person before it.

use std::fmt;
#[cfg(not(test))]
use std::io::Write;
use std::time::{Duration, Instant};

/// A line to standard output; a closed pipe is no reason to fail.
#[cfg(not(test))]
pub fn say(line: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// The same in a unit test, where the harness keeps what is printed: a verdict that a test provokes is not one of the run.
#[cfg(test)]
pub fn say(line: impl fmt::Display) {
    println!("{line}");
}

/// Progress with the time since the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    since: Instant,
}

impl Progress {
    /// Starts the clock.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a clock has no default")]
    pub fn new() -> Self {
        Self { since: Instant::now() }
    }

    /// Says that something is done.
    pub fn done(&self, what: impl fmt::Display) {
        say(format_args!("{:>7.2} s  {what}", self.since.elapsed().as_secs_f64()));
    }

    /// Time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Counts the checks of a run and ends it with a line that `cargo xtask test` reads.
#[derive(Debug, Default)]
pub struct Checks {
    passed: u64,
    failed: u64,
}

impl Checks {
    /// Counts one check.
    pub fn count(&mut self, good: bool) {
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Counts and prints one check.
    pub fn check(&mut self, what: impl fmt::Display, outcome: Result<String, String>) {
        self.count(outcome.is_ok());
        match outcome {
            Ok(detail) if detail.is_empty() => say(format_args!("PASS {what}")),
            Ok(detail) => say(format_args!("PASS {what}: {detail}")),
            Err(detail) => say(format_args!("FAIL {what}: {detail}")),
        }
    }

    /// How many failed so far.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed
    }

    /// Prints the count; true if nothing failed and something passed.
    #[must_use]
    pub fn finish(&self) -> bool {
        say(format_args!("checks: {} passed, {} failed", self.passed, self.failed));
        self.failed == 0 && self.passed > 0
    }
}
