//! Parses ginkgo's output: its console while specs run, and its JSON report at the end.

use std::fmt;

use anyhow::{Context, Result};
use serde::Deserialize;

/// How a spec ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Passed,
    /// Includes: timed out, interrupted, panicked.
    Failed,
    /// The spec inspected the cluster and found that it cannot run there.
    Skipped,
}

/// One selected spec.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) seconds: f64,
    /// Why it failed or skipped itself.
    pub(super) message: String,
    /// Its output.
    pub(super) log: String,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        })
    }
}

/// The line of a spec in a list.
pub(super) fn line(state: State, seconds: f64, name: &str) -> String {
    format!("{state:<7} {seconds:>7.1} s  {name}")
}

/// Number of specs by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    pub(super) fn of(specs: &[Spec]) -> Self {
        let mut counts = Self::default();
        for spec in specs {
            match spec.state {
                State::Passed => counts.passed += 1,
                State::Failed => counts.failed += 1,
                State::Skipped => counts.skipped += 1,
            }
        }
        counts
    }

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Whether at least one spec ran, and none failed.
    pub(super) fn is_good(self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Parses the console of a parallel `ginkgo -v`: for each completed spec it prints a header such as
/// `• [FAILED] [12.345 seconds]`, and in the next line the name with the labels in brackets.
#[derive(Debug, Default)]
pub(super) struct Console {
    header: Option<(State, f64)>,
}

impl Console {
    /// Parses a line; returns the spec that it completes.
    pub(super) fn line(&mut self, line: &str) -> Option<(State, f64, String)> {
        if let Some((state, seconds)) = self.header.take()
            && line.starts_with('[')
        {
            return Some((state, seconds, name(line)));
        }
        self.header = header(line);
        None
    }
}

/// State and duration in a header line.
fn header(line: &str) -> Option<(State, f64)> {
    // Ginkgo prints an `S` for each spec that was not selected, possibly before the header.
    let line = line.trim_start_matches('S');
    let seconds = line.strip_suffix(" seconds]")?.rsplit_once('[')?.1.parse().ok()?;
    if line.starts_with("• [SKIPPED]") || line.starts_with(" [SKIPPED]") {
        return Some((State::Skipped, seconds));
    }
    let rest = line.strip_prefix("• [")?;
    let passed = rest.starts_with(|c: char| c.is_ascii_digit());
    Some((if passed { State::Passed } else { State::Failed }, seconds))
}

/// The name without ginkgo's additions: the kind of the failed node, and the labels at the end.
fn name(line: &str) -> String {
    let line = line.replace(" [It] ", " ");
    match line.rsplit_once(" [") {
        Some((name, labels)) if labels.ends_with(']') => name.to_owned(),
        _ => line,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    suite_succeeded: bool,
    #[serde(default)]
    special_suite_failure_reasons: Option<Vec<String>>,
    spec_reports: Option<Vec<SpecReport>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    run_time: f64,
    failure: Option<Failure>,
    #[serde(default)]
    captured_ginkgo_writer_output: String,
    #[serde(default, rename = "CapturedStdOutErr")]
    captured_output: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
    location: Option<Location>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Location {
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    line_number: u64,
}

/// The selected specs from ginkgo's JSON report.
///
/// # Errors
/// The text is not such a report.
pub(super) fn parse(json: &str) -> Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_str(json).context("ginkgo's JSON report")?;
    let mut specs = Vec::new();
    for suite in suites {
        let before = specs.len();
        specs.extend(suite.spec_reports.into_iter().flatten().filter_map(SpecReport::taken));
        let reasons = suite.special_suite_failure_reasons.unwrap_or_default();
        let explained = specs[before..].iter().any(|s| s.state == State::Failed);
        if !suite.suite_succeeded && !explained && !reasons.is_empty() {
            specs.push(Spec {
                name: "[suite]".into(),
                state: State::Failed,
                seconds: 0.0,
                message: reasons.join("; "),
                log: String::new(),
            });
        }
    }
    Ok(specs)
}

impl SpecReport {
    /// `None` for specs that were not selected, and for a suite's own nodes that did not fail.
    fn taken(self) -> Option<Spec> {
        let failure = self.failure.unwrap_or(Failure { message: String::new(), location: None });
        let state = match self.state.as_str() {
            "passed" => State::Passed,
            // A skipped spec without a message was left out by the filter.
            "skipped" if failure.message.is_empty() => return None,
            "skipped" => State::Skipped,
            "pending" | "" => return None,
            _ => State::Failed,
        };
        let is_spec = self.leaf_node_type == "It";
        if !is_spec && state != State::Failed {
            return None;
        }
        let mut texts = self.container_hierarchy_texts.unwrap_or_default();
        texts.push(if is_spec { self.leaf_node_text } else { format!("[{}]", self.leaf_node_type) });
        let at = failure.location.map(|l| format!("\n{}:{}", l.file_name, l.line_number)).unwrap_or_default();
        Some(Spec {
            name: texts.join(" "),
            state,
            seconds: self.run_time / 1e9,
            message: if failure.message.is_empty() { self.state } else { failure.message + &at },
            log: self.captured_ginkgo_writer_output + &self.captured_output,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_told_as_they_end() {
        let console = "Running in parallel across 4 processes\nSSSSSS\n------------------------------\n\
                       • [5.123 seconds]\n[sig-network] DNS should a [Conformance] [sig-network, Conformance]\n/x/dns.go:1\n\
                       ------------------------------\nSS• [FAILED] [61.000 seconds]\n[sig-network] Services [It] should b [sig-network]\n\
                       S [SKIPPED] [0.100 seconds]\n[sig-network] Hints [BeforeEach] x should c [sig-network]\n\
                       • [PANICKED!] [1.000 seconds]\n[sig-network] d [sig-network]\n  [1.0 seconds]\n";
        let mut reader = Console::default();
        let told: Vec<_> = console.lines().filter_map(|l| reader.line(l)).collect();
        assert_eq!(told[0], (State::Passed, 5.123, "[sig-network] DNS should a [Conformance]".into()));
        assert_eq!(told[1], (State::Failed, 61.0, "[sig-network] Services should b".into()));
        assert_eq!(told[2].0, State::Skipped);
        assert_eq!(told[3].0, State::Failed);
        assert_eq!(told.len(), 4);
    }

    fn report(node: &str, state: &str, message: &str) -> String {
        format!(
            r#"{{"ContainerHierarchyTexts":["[sig-network] DNS"],"LeafNodeType":"{node}","LeafNodeText":"should x",
                "State":"{state}","RunTime":1500000000,"Failure":{{"Message":"{message}"}},"CapturedGinkgoWriterOutput":"log"}}"#
        )
    }

    fn suite(reports: &[String]) -> String {
        format!(r#"[{{"SuiteSucceeded":false,"SpecReports":[{}]}}]"#, reports.join(","))
    }

    #[test]
    fn only_specs_that_were_taken_are_counted() {
        let json = suite(&[
            report("It", "passed", ""),
            report("It", "skipped", ""),
            report("It", "skipped", "needs 3 zones"),
            report("It", "timedout", ""),
            report("It", "interrupted", "by a timeout"),
            report("SynchronizedBeforeSuite", "passed", ""),
        ]);
        let specs = parse(&json).unwrap();
        assert_eq!(Counts::of(&specs), Counts { passed: 1, failed: 2, skipped: 1 });
        assert_eq!(specs[0].name, "[sig-network] DNS should x");
        assert!((specs[0].seconds - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_suite_that_could_not_begin_is_a_failure() {
        let specs = parse(&suite(&[report("SynchronizedBeforeSuite", "failed", "no nodes")])).unwrap();
        assert_eq!(Counts::of(&specs), Counts { passed: 0, failed: 1, skipped: 0 });
        let json =
            r#"[{"SuiteSucceeded":false,"SpecialSuiteFailureReasons":["timed out"],"SpecReports":null}]"#;
        assert_eq!(Counts::of(&parse(json).unwrap()).failed, 1);
    }

    #[test]
    fn a_run_is_good_only_if_a_spec_passed_and_none_failed() {
        let counts = |passed, failed, skipped| Counts { passed, failed, skipped };
        assert!(counts(1, 0, 1).is_good());
        assert!(!counts(0, 0, 1).is_good());
        assert!(!counts(5, 1, 0).is_good());
        assert_eq!(counts(5, 1, 2).to_string(), "5 passed, 1 failed, 2 skipped");
    }
}
