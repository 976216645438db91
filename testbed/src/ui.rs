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

/// The checks of a run, as they were made. It ends with a line that `cargo xtask test` reads.
#[derive(Debug, Default)]
pub struct Checks {
    lines: Vec<String>,
    failed: Vec<usize>,
}

impl Checks {
    /// Prints and keeps one check.
    pub fn check(&mut self, what: impl fmt::Display, outcome: Result<String, String>) {
        let line = match outcome {
            Ok(detail) if detail.is_empty() => format!("PASS {what}"),
            Ok(detail) => format!("PASS {what}: {detail}"),
            Err(detail) => {
                self.failed.push(self.lines.len());
                format!("FAIL {what}: {detail}")
            }
        };
        say(&line);
        self.lines.push(line);
    }

    /// Keeps one check that is shown in another way, such as a row of a table.
    pub fn note(&mut self, what: impl fmt::Display, good: bool) {
        if !good {
            self.failed.push(self.lines.len());
        }
        self.lines.push(format!("{} {what}", if good { "PASS" } else { "FAIL" }));
    }

    /// All checks so far, a line each.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Those that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.failed.iter().filter_map(|&index| self.lines.get(index)).map(String::as_str)
    }

    /// How many failed so far.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Prints the count; true if nothing failed and something passed.
    #[must_use]
    pub fn finish(&self) -> bool {
        let (all, failed) = (self.lines.len(), self.failed.len());
        say(format_args!("checks: {} passed, {failed} failed", all - failed));
        failed == 0 && all > 0
    }
}
