//! Counts the passed, failed and skipped tests of every kind.

use anyhow::Result;

use crate::exec;

/// Precedes the counts of a part that runs in a process of its own.
pub(crate) const CLOSING: &str = "in all:";

/// The counts of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: Vec<String>,
    skipped: u64,
    /// What failed programs said, with their names.
    said: Vec<(String, String)>,
}

impl Tally {
    /// This number of checks passed.
    pub(crate) fn pass(&mut self, count: u64) {
        self.passed += count;
    }

    /// One check failed.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
        exec::say(format_args!("FAILED: {what}"));
        self.failed.push(what);
    }

    /// Keeps what a failed program said, for the report.
    pub(crate) fn keep(&mut self, name: &str, said: String) {
        self.said.push((name.to_owned(), said));
    }

    /// A step that is a check by itself.
    pub(crate) fn step(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.pass(1),
            Err(error) => self.fail(format!("{name}: {error:#}")),
        }
    }

    /// Parses the output of a Rust test program or the test bed: summary lines and single verdicts.
    /// Returns whether it contained a count.
    pub(crate) fn read(&mut self, origin: &str, output: &str) -> bool {
        let mut any = false;
        for line in output.lines().map(str::trim) {
            if let Some(summary) = Summary::parse(line) {
                any = true;
                self.passed += summary.passed;
                self.skipped += summary.skipped;
                for _ in 0..summary.failed {
                    self.failed.push(origin.to_owned());
                }
            }
        }
        any
    }

    /// Number of failures so far.
    pub(crate) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Prints what failed, and what it said.
    pub(crate) fn report(&self) {
        for (name, said) in &self.said {
            exec::say(format_args!("{name}:\n{said}\n"));
        }
        for failure in &self.failed {
            exec::say(format_args!("failed: {failure}"));
        }
    }

    /// `N passed, N failed`, and `, N skipped` if there are any.
    pub(crate) fn closing_line(&self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed.len());
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        line
    }

    /// Whether nothing failed, nothing was skipped, and something ran.
    pub(crate) fn is_good(&self) -> bool {
        self.failed.is_empty() && self.skipped == 0 && self.passed > 0
    }
}

/// A summary line: cargo's `test result: ok. 3 passed; 0 failed; 1 ignored; ..`, or the test bed's
/// `checks: 3 passed, 0 failed`.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Summary {
    fn parse(line: &str) -> Option<Self> {
        let rest = ["test result:", "checks:", CLOSING].iter().find_map(|p| line.strip_prefix(p))?;
        let words: Vec<&str> = rest.split([' ', ';', ',', '.']).filter(|w| !w.is_empty()).collect();
        let count =
            |name: &str| words.windows(2).find(|w| w[1] == name).and_then(|w| w[0].parse::<u64>().ok());
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            // A test marked `ignore` is a helper that another test starts, not a test that was skipped.
            skipped: count("skipped").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_cargo_and_of_the_test_bed_are_counted() {
        let mut tally = Tally::default();
        let cargo = "test a ... ok\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert!(tally.read("x", cargo));
        assert!(tally.read("y", "checks: 7 passed, 2 failed, 1 skipped"));
        assert_eq!(tally.closing_line(), "10 passed, 2 failed, 1 skipped");
        assert!(!tally.is_good());
        // A part that ran at the same time as the others.
        let mut all = Tally::default();
        assert!(all.read("z", &format!("{} {}", CLOSING, tally.closing_line())));
        assert_eq!(all.closing_line(), tally.closing_line());
    }

    #[test]
    fn a_run_without_a_summary_is_noticed() {
        let mut tally = Tally::default();
        assert!(!tally.read("x", "killed by a signal"));
        assert!(!tally.is_good());
        assert_eq!(tally.closing_line(), "0 passed, 0 failed");
    }

    #[test]
    fn a_skipped_test_is_no_success() {
        let mut tally = Tally::default();
        tally.pass(1);
        assert!(tally.is_good());
        tally.read("x", "checks: 1 passed, 0 failed, 1 skipped");
        assert!(!tally.is_good());
    }
}
