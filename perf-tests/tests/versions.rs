//! Two builds against each other, short: every path of both is measured, and a build that forwards without the flow cache is worse.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use serde_json::Value;

/// Compares the programs of this build with themselves; the document, what was said, and the exit code.
fn run(arguments: &[&str]) -> (Value, String, Option<i32>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("compare.json");
    let programs = Path::new(env!("CARGO_BIN_EXE_perf-tests")).parent().unwrap();
    let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
    command.arg("versions").arg("--before").arg(programs).arg("--after").arg(programs);
    command.args(["--name", "compare-test", "--json"]).arg(&file).args(arguments);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{error}: {said}"));
    (serde_json::from_slice(&text).unwrap(), said, out.status.code())
}

#[test]
fn every_path_of_both_builds_is_measured() {
    let (whole, said, code) = run(&["--rounds", "3", "--slice-ms", "60", "--names", "one,two"]);
    let series = whole["samples"].as_array().unwrap();
    assert_eq!(series.len(), 2 * 3 * 10, "{said}");
    for one in series {
        let slices = one["slices"].as_array().unwrap();
        assert!(slices.iter().all(|slice| slice[1].as_f64().is_some_and(|rate| rate > 0.0)), "{one}");
    }
    assert_eq!(whole["builds"], serde_json::json!(["one", "two"]));
    // Three rounds are too few for any answer.
    assert!(said.contains("no verdict: 30"), "{said}");
    assert_eq!(code, Some(3), "{said}");
}

#[test]
fn a_build_without_the_flow_cache_is_worse() {
    let (_, said, code) = run(&[
        "--after-datapath",
        "ovs",
        "--paths",
        "fast",
        "--loads",
        "tcp-rr",
        "--rounds",
        "120",
        "--slice-ms",
        "20",
    ]);
    assert!(said.contains("worse: 1"), "{said}");
    assert_eq!(code, Some(1), "{said}");
}
