//! JUnit files, for what shows test results.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use testbed::ui::say;

/// The directory for the files.
const DIRECTORY: &str = "SLIPSTREAM_JUNIT";

/// The trials of one program.
#[derive(Debug)]
pub(super) struct Report {
    program: &'static str,
    trials: Vec<TestCase>,
}

impl Report {
    pub(super) fn new(program: &'static str) -> Self {
        Self { program, trials: Vec::new() }
    }

    /// Adds a trial with the lines of its checks; `wrong` is why it failed.
    pub(super) fn add(&mut self, name: &str, took: Duration, checks: &[String], wrong: Option<&str>) {
        let status = match wrong {
            None => TestCaseStatus::success(),
            Some(why) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(why.lines().next().unwrap_or_default()).set_description(why);
                status
            }
        };
        let mut case = TestCase::new(name, status);
        case.set_classname(self.program).set_time(took).set_system_out(checks.join("\n"));
        self.trials.push(case);
    }

    /// Writes the file, if one is requested.
    pub(super) fn write(&self, took: Duration) {
        let Some(directory) = env::var_os(DIRECTORY).filter(|value| !value.is_empty()) else { return };
        if let Err(error) = self.write_to(PathBuf::from(directory), took) {
            say(format_args!("no JUnit file: {error:#}"));
        }
    }

    fn write_to(&self, directory: PathBuf, took: Duration) -> Result<()> {
        let mut suite = TestSuite::new(self.program);
        suite.set_time(took).add_test_cases(self.trials.iter().cloned());
        let mut report = quick_junit::Report::new(self.program);
        report.set_time(took).add_test_suite(suite);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        // Several runs of a program, each with other trials, have a file each.
        let filter: String =
            env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect::<Vec<_>>().join("-");
        let filter = filter.trim_end_matches(':').replace("::", "-");
        let name =
            if filter.is_empty() { self.program.to_owned() } else { format!("{}-{filter}", self.program) };
        let file = directory.join(format!("{name}.xml"));
        fs::write(&file, report.to_string()?).with_context(|| file.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_every_trial_and_why_one_failed() {
        let mut report = Report::new("suite");
        report.add("a", Duration::from_millis(1500), &["PASS x".to_owned()], None);
        report.add("b", Duration::ZERO, &[], Some("not so\nsecond line"));
        let dir = tempfile::tempdir().unwrap();
        report.write_to(dir.path().to_owned(), Duration::from_secs(2)).unwrap();
        let text = fs::read_to_string(dir.path().join("suite.xml")).unwrap();
        assert!(text.contains(r#"tests="2""#) && text.contains(r#"failures="1""#), "{text}");
        assert!(text.contains("PASS x") && text.contains("not so"), "{text}");
    }
}
