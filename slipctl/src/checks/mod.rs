//! `slipctl preflight` and `slipctl doctor`: what was looked at, what is wrong, why it matters and what to do.

pub(crate) mod doctor;
pub(crate) mod host;
pub(crate) mod links;
pub(crate) mod preflight;
pub(crate) mod unixctl;

use std::fmt::Write;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// Exit code when something failed.
const FAILED: u8 = 6;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Level {
    /// Nothing is wrong.
    Ok,
    /// Works, with less.
    Warning,
    /// Something does not work.
    Failure,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// What was looked at, in a word or two.
    pub(crate) check: String,
    /// How bad it is.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) found: String,
    /// Why it matters; empty when all is well.
    pub(crate) why: String,
    /// What to do; empty when all is well.
    pub(crate) remedy: String,
}

impl Finding {
    pub(crate) fn ok(check: &str, found: impl Into<String>) -> Self {
        let (check, found) = (check.to_owned(), found.into());
        Self { check, level: Level::Ok, found, why: String::new(), remedy: String::new() }
    }

    pub(crate) fn warning(check: &str, found: impl Into<String>, why: &str, remedy: &str) -> Self {
        let (why, remedy) = (why.to_owned(), remedy.to_owned());
        Self { level: Level::Warning, why, remedy, ..Self::ok(check, found) }
    }

    pub(crate) fn failure(check: &str, found: impl Into<String>, why: &str, remedy: &str) -> Self {
        Self { level: Level::Failure, ..Self::warning(check, found, why, remedy) }
    }
}

/// Findings as text: one line for what is well, with reason and remedy for the rest, and a sum.
pub(crate) fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.check.chars().count()).max().unwrap_or_default();
    let mut out = String::new();
    for Finding { check, level, found, why, remedy } in findings {
        let mark = match level {
            Level::Ok => "ok  ",
            Level::Warning => "warn",
            Level::Failure => "FAIL",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{mark}  {check:width$}  {found}");
        for (name, text) in [("why", why), ("do", remedy)] {
            if !text.is_empty() {
                let _ = writeln!(out, "      {:width$}  {name}: {text}", "");
            }
        }
    }
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let _ = writeln!(
        out,
        "\n{} checks: {} ok, {} warnings, {} failures",
        findings.len(),
        count(Level::Ok),
        count(Level::Warning),
        count(Level::Failure)
    );
    out
}

/// 6 when something failed.
pub(crate) fn code(findings: &[Finding]) -> ExitCode {
    match findings.iter().any(|finding| finding.level == Level::Failure) {
        true => ExitCode::from(FAILED),
        false => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_reason_and_remedy() {
        let findings = [
            Finding::ok("kernel", "6.1"),
            Finding::failure("ports", "9410 is taken", "the agent needs it", "free it"),
        ];
        assert_eq!(
            text(&findings),
            "ok    kernel  6.1\nFAIL  ports   9410 is taken\n              why: the agent needs it\n              do: free it\n\n\
             2 checks: 1 ok, 0 warnings, 1 failures\n"
        );
        assert_eq!(code(&findings), ExitCode::from(6));
        assert_eq!(code(&findings[..1]), ExitCode::SUCCESS);
    }
}
