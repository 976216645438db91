//! The suites of the package `e2e`: which of their trials run together, and beside what.

use anyhow::{Result, bail};

use super::jobs::{Job, Lane};
use super::programs::TestProgram;
use crate::paths;

/// One run of a suite's test program.
struct Run {
    target: &'static str,
    /// Of the trials' names; all of them without.
    filter: &'static str,
    part: &'static str,
    lane: Lane,
}

const fn run(target: &'static str, filter: &'static str, part: &'static str, lane: Lane) -> Run {
    Run { target, filter, part, lane }
}

/// Those that take long come first, so that the lanes end together.
const RUNS: &[Run] = &[
    run("node_lifecycle", "", "real", Lane::Real),
    run("supervision", "", "cluster", Lane::Shared),
    run("uplink_migration", "", "cluster", Lane::Shared),
    run("pod_churn", "every_process_killed::", "cluster", Lane::Shared),
    run("pod_churn", "at_rest::", "cluster", Lane::Shared),
    run("fault_injection", "", "cluster", Lane::Shared),
    run("ovn_kubernetes_parity", "", "cluster", Lane::Shared),
    run("demonstration", "", "cluster", Lane::Shared),
    // Those that use all of the machine, or whose expectations have to do with time.
    run("scale", "", "alone", Lane::Alone),
    run("flow_cache_invariants", "", "alone", Lane::Alone),
    run("flow_cache_equivalence", "", "alone", Lane::Alone),
];

/// These need a kernel of their own: `cargo xtask vm-test` runs them in a virtual machine.
const IN_MACHINES: &[&str] = &["kernel_datapath", "instruction_count"];

/// The jobs of all suites.
pub(super) fn jobs(programs: &[TestProgram]) -> Result<Vec<Job>> {
    let suites: Vec<_> = programs.iter().filter(|p| p.package == "e2e" && !p.is_unit).collect();
    let known = |target: &str| RUNS.iter().any(|run| run.target == target) || IN_MACHINES.contains(&target);
    if let Some(unknown) = suites.iter().find(|program| !known(&program.target)) {
        bail!("the suite {} is new: say in xtask/src/test/suites.rs beside what it runs", unknown.target);
    }
    let mut jobs = Vec::new();
    for run in RUNS {
        let Some(program) = suites.iter().find(|program| program.target == run.target) else {
            bail!("there is no suite {}", run.target);
        };
        let mut command = program.command()?;
        command.env("SLIPSTREAM_JUNIT", paths::target().join("junit"));
        let mut name = format!("e2e {}", run.target);
        if !run.filter.is_empty() {
            command.arg(run.filter);
            name = format!("{name} {}", run.filter.trim_end_matches(':'));
        }
        jobs.push(Job { name, part: run.part, target: run.target.to_owned(), lane: run.lane, command });
    }
    Ok(jobs)
}
