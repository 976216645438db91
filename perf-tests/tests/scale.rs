//! The scenarios that ask what a number of objects costs, short, on clusters of their own: every load on every path, and clear words where the command line
//! is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;

/// Runs one with few rounds; what it leaves, and what it says.
fn run(arguments: &[&str]) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scale.json");
    let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
    let out = command
        .args(arguments)
        .args(["--rounds", "3", "--slice-ms", "200", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    (serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap(), said)
}

/// Each of the three loads has a slice of each path in each of the three rounds, and something was carried.
fn all_measured(whole: &Value, paths: usize) {
    let series = whole["phases"][0]["samples"].as_array().unwrap();
    assert_eq!(series.len(), 3 * paths, "{whole}");
    for one in series {
        let slices = one["slices"].as_array().unwrap();
        assert_eq!(slices.len(), 3, "{one}");
        assert!(slices.iter().all(|slice| slice[1].as_f64().is_some_and(|rate| rate > 0.0)), "{one}");
    }
}

#[test]
fn policies_are_in_force_and_every_path_is_measured() {
    let (whole, said) = run(&["policy-scale", "--policies", "2,20", "--name", "policy-scale-test"]);
    all_measured(&whole, 3);
    assert_eq!(whole["phases"][0]["objects"]["policies"], serde_json::json!([2, 20]));
    assert!(said.contains("new connections across nodes under 20 policies"), "{said}");
}

#[test]
fn connections_beside_other_services_are_measured() {
    let (whole, said) = run(&["service-scale", "--services", "30", "--name", "service-scale-test"]);
    all_measured(&whole, 5);
    assert!(said.contains("TCP_RR to a cluster IP beside 30 services"), "{said}");
}

#[test]
fn connections_are_measured_while_others_come_and_go() {
    let (whole, said) = run(&["churn", "--pods", "4,8", "--endpoints", "5", "--name", "churn-test"]);
    let phases = whole["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2, "{whole}");
    for (phase, pods) in phases.iter().zip([4.0, 8.0]) {
        let made = &phase["objects"]["made"];
        assert!(made["pods"].as_f64().is_some_and(|made| made > 0.5 * pods), "{made}: {said}");
        assert!(made["endpoints"].as_f64().is_some_and(|made| made > 2.0), "{made}: {said}");
        assert_eq!(phase["samples"].as_array().unwrap().len(), 3 * 4, "{phase}");
    }
    assert!(said.contains("TCP_RR to a cluster IP, 8 pods/s elsewhere"), "{said}");
}

#[test]
fn wrong_numbers_of_policies_are_refused_before_anything_is_up() {
    for (numbers, expected) in
        [("5", "two numbers"), ("9,3", "the smaller number first"), ("0,3", "not in 1..=10000")]
    {
        let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
        let out = command.args(["policy-scale", "--policies", numbers]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(expected), "{numbers}: {said}");
    }
}
