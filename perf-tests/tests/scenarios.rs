//! The scenarios of pods, small, on a cluster of their own: each of their series has samples.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;

#[test]
fn every_scenario_measures_all_of_its_series() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("series.json");
    let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
    command.args(["cni", "rows", "scale", "ingest", "--pods", "3", "--burst", "3", "--scale", "40"]);
    command.args(["--ingest", "20"]);
    command.arg("--json").arg(&file);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(whole["machine"]["commit"].is_string(), "{whole}");
    let all: Vec<Value> = whole["series"].as_array().unwrap().clone();
    let names: Vec<&str> = all.iter().filter_map(|series| series["name"].as_str()).collect();
    for expected in [
        "CNI ADD, port row long there",
        "CNI ADD of ten interfaces, of one",
        "settled ADD: installed",
        "services: in NB",
        "policies: in all flows after last row",
    ] {
        assert!(names.contains(&expected), "no {expected} among {names:?}");
    }
    for series in &all {
        let samples = series["samples"].as_array().unwrap();
        let finite = |sample: &Value| sample.as_f64().is_some_and(f64::is_finite);
        assert!(!samples.is_empty() && samples.iter().all(finite), "{series}");
    }
}
