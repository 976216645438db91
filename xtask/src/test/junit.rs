//! JUnit files of Rust's test programs, for what shows test results. The suites of the package `e2e` write their own.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

/// Writes the tests of a program, as its output tells of them, to a file in `directory`. Without a test there is no file.
pub(super) fn write(directory: &Path, program: &str, output: &str, took: Duration) -> Result<()> {
    let cases: Vec<_> =
        verdicts(output).map(|(name, is_good)| case(program, name, is_good, output)).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let mut suite = TestSuite::new(program);
    suite.set_time(took).add_test_cases(cases);
    let mut report = Report::new(program);
    report.set_time(took).add_test_suite(suite);
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let file = directory.join(format!("{}.xml", program.replace([' ', '/', ':'], "-")));
    fs::write(&file, report.to_string()?).with_context(|| file.display().to_string())
}

/// The names of the tests, and whether each passed. Tests marked `ignore` are helpers that another test starts.
fn verdicts(output: &str) -> impl Iterator<Item = (&str, bool)> {
    output.lines().filter_map(|line| {
        let (name, verdict) = line.trim().strip_prefix("test ")?.rsplit_once(" ... ")?;
        match verdict.trim() {
            "ok" => Some((name, true)),
            "FAILED" => Some((name, false)),
            _ => None,
        }
    })
}

fn case(program: &str, name: &str, is_good: bool, output: &str) -> TestCase {
    let status = if is_good {
        TestCaseStatus::success()
    } else {
        let said = said(output, name);
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(said.lines().next().unwrap_or_default()).set_description(said);
        status
    };
    let mut case = TestCase::new(name, status);
    case.set_classname(program);
    case
}

/// What a failed test said: libtest prints it between a heading with the test's name and the next one.
fn said<'a>(output: &'a str, name: &str) -> &'a str {
    let heading = format!("---- {name} stdout ----\n");
    let Some((_, rest)) = output.split_once(&heading) else { return "" };
    let end = ["\n---- ", "\nfailures:"].iter().filter_map(|mark| rest.find(mark)).min();
    rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 3 tests\ntest a::one ... ok\ntest a::helper ... ignored\ntest b::two ... FAILED\n\n\
                          failures:\n\n---- b::two stdout ----\nleft: 1\nright: <2>\n\n\nfailures:\n    b::two\n\n\
                          test result: FAILED. 1 passed; 1 failed; 1 ignored\n";

    #[test]
    fn a_file_has_every_test_and_what_the_failed_one_said() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "package target", OUTPUT, Duration::from_secs(2)).unwrap();
        let text = fs::read_to_string(dir.path().join("package-target.xml")).unwrap();
        assert!(text.contains(r#"tests="2""#) && text.contains(r#"failures="1""#), "{text}");
        assert!(text.contains("left: 1") && text.contains("right: &lt;2"), "{text}");
    }

    #[test]
    fn output_without_tests_makes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "step", "checks: 3 passed, 0 failed", Duration::ZERO).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
