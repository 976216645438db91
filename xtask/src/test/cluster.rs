//! The tests on whole clusters: the test bed runs them and prints a count of its own.

use std::time::Instant;

use anyhow::Result;

use super::cargo::stream;
use super::tally::Tally;
use crate::{exec, paths};

/// Name and arguments of each run of the test bed. All of them wait most of the time.
const RUNS: &[(&str, &[&str])] = &[
    ("demonstration", &["demo", "--datapath", "ebpf"]),
    ("demonstration without eBPF", &["demo", "--datapath", "ovs"]),
    ("demonstration with IPv4 and IPv6", &["demo", "--dual-stack", "--datapath", "ebpf"]),
    ("demonstration with IPv4 and IPv6, without eBPF", &["demo", "--dual-stack", "--datapath", "ovs"]),
    ("golden reference", &["golden"]),
    ("churn of 100 pods, twice, beside 700 others", &["churn", "--stubs", "700"]),
    (
        "churn of 100 pods, twice, every process killed, beside 700 others",
        &["churn", "--kill=all", "--stubs", "700"],
    ),
    ("every task and thread ended, one after another", &["supervise", "--datapath", "ebpf"]),
    ("what happens to uplinks", &["uplink", "--datapath", "ebpf"]),
    ("bad input", &["hardship"]),
];

/// Those that use all of the machine, or whose expectations have to do with time.
const ALONE: &[(&str, &[&str])] = &[
    ("a restart in a cluster of more than a few hundred pods", &["scale", "--only", "gap"]),
    ("2,000 pods on 100 simulated nodes", SMALL_SCALE),
    ("laws of the fast path", &["laws", "--datapath", "ebpf", "--changes", "1000"]),
    ("the same laws without eBPF", &["laws", "--datapath", "ovs", "--changes", "150", "--flows", "200000"]),
    ("what arrives by the flow cache and through OVS", &["exact"]),
];

/// What `testbed scale` does with ten times as many, in about a minute.
const SMALL_SCALE: &[&str] = &[
    "scale",
    "--only",
    "rebuild,churn,idle,restart",
    "--nodes",
    "100",
    "--pods",
    "2000",
    "--services",
    "40",
    "--policies",
    "100",
    "--rate",
    "20",
    "--churn-seconds",
    "10",
    "--idle-seconds",
    "5",
    "--limit",
    "120",
];

/// Runs them one after another, each on a cluster of its own.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    RUNS.iter().try_for_each(|(name, args)| one(tally, name, args))
}

/// The same for those that have the machine to themselves.
pub(super) fn run_alone(tally: &mut Tally) -> Result<()> {
    ALONE.iter().try_for_each(|(name, args)| one(tally, name, args))
}

/// One run of the test bed.
pub(super) fn one(tally: &mut Tally, name: &str, args: &[&str]) -> Result<()> {
    let testbed = paths::target().join("debug/testbed");
    exec::heading(name);
    let since = Instant::now();
    let (output, good) = stream(exec::command(&testbed).args(args))?;
    let before = tally.failures();
    if !tally.read(name, &output) {
        tally.fail(format!("{name}: ended without a count"));
    } else if !good && tally.failures() == before {
        tally.fail(format!("{name}: ended badly"));
    }
    exec::say(format_args!("--- {name} took {:.0?}", since.elapsed()));
    Ok(())
}
