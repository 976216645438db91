//! The checks of a trial or of the demonstration.

use std::fmt;

use testbed::ui::say;

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
