//! The suites of the package `e2e`: which of their trials run together, and with what.

use anyhow::{Context, Result, bail};

use super::jobs::{self, Job, Lane};
use super::programs::TestProgram;

/// One run of a suite's test program.
struct Run {
    target: &'static str,
    /// Part of the trials' names; empty for all of them.
    filter: &'static str,
    part: &'static str,
    lane: Lane,
}

const fn run(target: &'static str, filter: &'static str, part: &'static str, lane: Lane) -> Run {
    Run { target, filter, part, lane }
}

/// Long runs come first in most lanes, so that they end together.
const RUNS: &[Run] = &[
    run("node_lifecycle", "", "real", Lane::Real),
    run("multus", "", "real", Lane::Real),
    run("demonstration", "ebpf::", "cluster", Lane::Shared),
    run("uplink_migration", "", "cluster", Lane::Shared),
    run("service_matrix", "", "cluster", Lane::Shared),
    run("demonstration", "ovs::", "cluster", Lane::Shared),
    run("pod_churn", "every_process_killed::", "cluster", Lane::Shared),
    run("pod_churn", "at_rest::", "cluster", Lane::Shared),
    run("scoped_changes", "", "cluster", Lane::Shared),
    run("virtual_networks", "", "cluster", Lane::Shared),
    run("fault_injection", "", "cluster", Lane::Shared),
    run("ovn_kubernetes_parity", "", "cluster", Lane::Shared),
    run("flow_cache_equivalence", "sides::", "cluster", Lane::Shared),
    // Suites whose expectations concern times, and which mostly wait. The first one has the shortest bounds, so it gets neighbours that
    // leave it a processor.
    run("flow_cache_invariants", "changes_ebpf::", "waiting", Lane::Waiting),
    run("supervision", "", "waiting", Lane::Waiting),
    run("flow_cache_invariants", "changes_ovs::", "waiting", Lane::Waiting),
    run("flow_cache_invariants", "failures_ebpf::", "waiting", Lane::Waiting),
    run("flow_cache_invariants", "failures_ovs::", "waiting", Lane::Waiting),
    // Beside the trials that restart agents, with their programs to be loaded, it does not reach its rate of changes.
    run("flow_cache_invariants", "bystanders_ebpf::", "waiting", Lane::Waiting),
    // Suites that use the whole machine, or fail when others run.
    run("flow_cache_equivalence", "pods::", "alone", Lane::Calm),
    run("scale", "", "alone", Lane::Calm),
    run("flow_cache_equivalence", "compared::", "alone", Lane::Calm),
    run("flow_cache_invariants", "full_node_ebpf::", "alone", Lane::Alone),
    run("flow_cache_invariants", "spray_", "alone", Lane::Alone),
];

/// These suites need a kernel of their own: `cargo xtask vm-test` runs them in a virtual machine.
const IN_MACHINES: &[&str] = &["kernel_datapath", "instruction_count"];

/// The jobs of all suites.
pub(super) fn of_suites(programs: &[TestProgram]) -> Result<Vec<Job>> {
    let suites: Vec<_> = programs.iter().filter(|p| p.package == "e2e" && !p.is_unit).collect();
    let known = |target: &str| RUNS.iter().any(|run| run.target == target) || IN_MACHINES.contains(&target);
    if let Some(unknown) = suites.iter().find(|program| !known(&program.target)) {
        bail!("the suite {} is new: say in xtask/src/test/suites.rs beside what it runs", unknown.target);
    }
    for program in &suites {
        let filters: Vec<_> =
            RUNS.iter().filter(|run| run.target == program.target).map(|run| run.filter).collect();
        if filters.iter().any(|filter| !filter.is_empty()) {
            every_trial_once(&trials(program)?, &filters)
                .with_context(|| format!("the runs of {} in xtask/src/test/suites.rs", program.target))?;
        }
    }
    let mut jobs = Vec::new();
    for run in RUNS {
        let Some(program) = suites.iter().find(|program| program.target == run.target) else {
            bail!("there is no suite {}", run.target);
        };
        let mut command = program.command()?;
        command.env("SLIPSTREAM_JUNIT", jobs::junit_directory());
        let mut name = format!("e2e {}", run.target);
        if !run.filter.is_empty() {
            command.arg(run.filter);
            name = format!("{name} {}", run.filter.trim_end_matches(':'));
        }
        jobs.push(Job {
            name,
            part: run.part,
            target: run.target.to_owned(),
            lane: run.lane,
            reports_itself: true,
            command,
        });
    }
    Ok(jobs)
}

/// The names of a suite's trials.
fn trials(program: &TestProgram) -> Result<Vec<String>> {
    let out = program.command()?.arg("--list").output().context("cannot list the trials")?;
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Fails unless each trial is in exactly one of the runs. Filters are parts of names, as the test programs use them.
fn every_trial_once(trials: &[String], filters: &[&str]) -> Result<()> {
    if trials.is_empty() {
        bail!("there are no trials");
    }
    for trial in trials {
        match filters.iter().filter(|filter| trial.contains(**filter)).count() {
            1 => {}
            0 => bail!("no run takes the trial {trial}"),
            count => bail!("{count} runs take the trial {trial}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_no_run_takes_or_that_two_take_is_told() {
        let trials = ["a::one", "b_a::two"].map(str::to_owned);
        let said = |filters: &[&str]| every_trial_once(&trials, filters).unwrap_err().to_string();
        assert!(said(&["b_a::"]).contains("no run takes the trial a::one"));
        assert!(said(&["a::", "b_a::"]).contains("2 runs take the trial b_a::two"));
        every_trial_once(&trials, &["one", "two"]).unwrap();
        every_trial_once(&[], &["one"]).unwrap_err();
    }
}
