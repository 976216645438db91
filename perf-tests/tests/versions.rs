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

/// The median rate of one build on a path.
fn rate(whole: &Value, path: &str, twin: bool) -> f64 {
    let series = whole["samples"].as_array().unwrap().iter();
    let mut rates: Vec<f64> = series
        .filter(|one| one["path"] == path && one["twin"] == twin)
        .flat_map(|one| one["slices"].as_array().unwrap())
        .map(|slice| slice[1].as_f64().unwrap())
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
fn every_path_of_both_builds_is_measured_and_one_without_the_flow_cache_is_slower() {
    let ovs = ["--after-datapath", "ovs"];
    let few = ["--loads", "tcp-rr", "--rounds", "35", "--slice-ms", "15", "--names", "one,two"];
    let (whole, said, code) = run(&[&ovs[..], &few].concat());
    assert_eq!(whole["samples"].as_array().unwrap().len(), 2 * 10, "{said}");
    assert_eq!(whole["builds"], serde_json::json!(["one", "two"]));
    for row in whole["rows"].as_array().unwrap() {
        let path = row["path"].as_str().unwrap();
        let [before, after] = [false, true].map(|twin| rate(&whole, path, twin));
        assert!(after > 0.0, "{path}: {said}");
        // A pod that reaches itself goes through OVS in any case.
        if path != "hairpin" {
            assert!(after < 0.8 * before, "{path}: {before} {after}: {said}");
            // Where other tests take the processor, slices are left out, and there is no verdict.
            assert!(row["verdict"] == "worse" || row["verdict"] == "undecided", "{row}: {said}");
        }
    }
    assert!(matches!(code, Some(1 | 3)), "{code:?}: {said}");
}

#[test]
fn wrong_words_are_refused_before_anything_is_up() {
    for (words, expected) in [
        (["--names", "one"], "--names wants two"),
        (["--within", "0"], "must be more than 0"),
        (["--paths", "veth"], "no path of a cluster"),
    ] {
        let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
        let out = command.args(["versions", "--before", "/x", "--after", "/y"]).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(expected), "{words:?}: {said}");
    }
}
