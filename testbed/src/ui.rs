//! Messages of the test bed on the terminal.

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

/// In a unit test the line goes to the harness, which keeps it: a verdict that a test provokes is not one of the run.
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
