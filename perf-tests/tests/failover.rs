//! The benchmark of failures, short, on clusters of its own: the death of an agent costs next to nothing, that of a userspace datapath is seen.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;

/// Runs it; the samples, and the table.
fn run(arguments: &[&str]) -> (Vec<Value>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("failover.json");
    let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
    command
        .args(["failover", "--times", "1", "--after-ms", "1000", "--name", "failover-test"])
        .args(arguments);
    let out = command.arg("--json").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    (whole["samples"].as_array().unwrap().clone(), said)
}

#[test]
fn dead_agents_lose_next_to_nothing_and_a_dead_datapath_is_seen() {
    let (samples, said) = run(&["--only", "nothing,agent"]);
    assert!(said.contains("node agents"), "{said}");
    assert_eq!(samples.len(), 12, "two failures, three ways, each with UDP and TCP: {said}");
    for sample in samples.iter().filter(|one| one["udp"] == true) {
        let [sent, lost] = ["sent", "lost"].map(|field| sample[field].as_u64().unwrap());
        assert!(sent > 300 && lost * 20 < sent, "{said}");
    }
    let (samples, said) = run(&["--only", "vswitchd", "--datapath", "ovs", "--dead-ms", "1500"]);
    assert_eq!(samples.len(), 6, "{said}");
    for sample in samples {
        assert!(sample["stall_ms"].as_f64().unwrap() > 1400.0, "without the datapath nothing goes: {said}");
        assert_eq!(sample["cached"], false, "there is no cache: {said}");
    }
}
