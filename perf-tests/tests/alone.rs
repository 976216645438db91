//! The measurements of the programs by themselves: that their packets are learned and carried as those of a cluster are. Needs root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;

#[test]
fn hits_and_misses_of_the_programs_alone_are_measured() {
    let mut command = testbed::exec::command("unshare");
    command.args([
        "--net",
        "--mount",
        "--propagation",
        "private",
        "--",
        env!("CARGO_BIN_EXE_perf-tests"),
        "alone",
    ]);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let alone: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap();
    for kind in ["hit_tx", "hit_rx", "miss"] {
        let values: Vec<f64> = alone[kind].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        assert!(!values.is_empty() && values.iter().all(|value| value.is_finite()), "{kind}: {values:?}");
    }
}

#[test]
fn every_lane_of_a_node_port_forwards_all_frames() {
    let mut command = testbed::exec::command(env!("CARGO_BIN_EXE_perf-tests"));
    let out = command.args(["xdp-forward", "--rounds", "2", "--frames", "2000"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("XDP, out of the tunnel") && said.contains("XDP / TC, into the tunnel"), "{said}");
}
