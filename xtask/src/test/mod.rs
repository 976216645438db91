//! `cargo xtask test`: runs every test, at the same time as others where possible, and ends with one line that counts them.

mod disk;
mod failures;
mod jobs;
mod junit;
mod programs;
mod steps;
mod suites;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::tally::Tally;
use crate::{build, build_ebpf, exec, image, paths, setup};
use jobs::{Job, Lane, Took};
use programs::TestProgram;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only these parts (lint, unit, ebpf, ovsdb, controller, agent, doc, cluster, real, alone, vm), or test programs by
    /// the names of their targets; default: everything.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Run only lint, unit and host tests, and the eBPF programs in the kernel: tests without databases and clusters.
    #[arg(long)]
    quick: bool,
    /// Run one step in this process.
    #[arg(long, hide = true)]
    step: Option<String>,
}

/// Number of the slowest programs that are listed at the end.
const SLOWEST: usize = 15;

/// Runs the chosen jobs; a failed program does not stop the next. `verbs` is the command line of this program.
pub(crate) fn run(args: &Args, verbs: &clap::Command) -> Result<()> {
    if let Some(step) = &args.step {
        return steps::run(step, verbs);
    }
    let mut tally = Tally::default();
    let begin = Instant::now();
    let room = disk::Watch::begin()?;
    if let Some(warning) = disk::warning(disk::free()?, args.quick || paths::target().join("image").exists())
    {
        exec::say(warning);
    }
    exec::heading("setup");
    tally.step("setup", setup::ensure());
    exec::heading("build");
    tally.step("eBPF programs build", build_ebpf::run());
    if !args.quick {
        tally.step("browser", setup::ensure_browser());
        tally.step("programs build", build::programs(&["e2e", "cluster-bench"]));
        tally.step("container image", image::for_test_bed());
        tally.step("image of the traffic tool", image::check_traffic());
    }
    let programs = programs::build(args.quick)?;
    let built = begin.elapsed();
    let jobs = chosen(all(&programs, args.quick)?, &args.only)?;
    let took = jobs::run_all(jobs, &mut tally)?;
    exec::heading("slowest");
    slowest(took);
    exec::heading("result");
    tally.report();
    exec::say(format_args!("took {:.0?}, setup and build {built:.0?} of it", begin.elapsed()));
    exec::say(room.end()?);
    exec::say(tally.closing_line());
    if tally.is_good() { Ok(()) } else { std::process::exit(1) }
}

/// Every job of a full or a quick run.
fn all(programs: &[TestProgram], quick: bool) -> Result<Vec<Job>> {
    let mut jobs = steps::jobs(quick)?;
    if !quick {
        jobs.extend(suites::of_suites(programs)?);
    }
    for program in programs.iter().filter(|p| p.is_unit || p.package != "e2e") {
        if quick && !program.is_quick() {
            continue;
        }
        let part = program.part();
        let lane = match part {
            // One holds each loss to 20 s, of which a lease takes 15; one holds a connection to 1 s; one measures.
            _ if ["real_failover", "real_perf_tests", "real_upgrade"].contains(&program.target.as_str()) => {
                Lane::Alone
            }
            "real" => Lane::Real,
            // In a full run, the tests of the eBPF programs in the kernel run beside the virtual machine.
            _ if !quick && program.target == "bpf" => Lane::Background,
            // It measures how long OVS takes to revalidate thousands of flows, and waits for nearly all of its time.
            _ if program.target == "flow_cache_manager" => Lane::Calm,
            _ if program.is_quick() => Lane::First,
            _ => Lane::Shared,
        };
        let command =
            if lane == Lane::Background { program.command_beside_machine()? } else { program.command()? };
        let name = format!("{} {}", program.package, program.target);
        jobs.push(Job { name, part, target: program.target.clone(), lane, reports_itself: false, command });
    }
    Ok(jobs)
}

/// The jobs of the named parts and targets.
fn chosen(jobs: Vec<Job>, only: &[String]) -> Result<Vec<Job>> {
    let is = |job: &Job, name: &String| job.part == name || job.target == *name;
    if let Some(unknown) = only.iter().find(|name| !jobs.iter().any(|job| is(job, name))) {
        let mut known: Vec<_> = jobs.iter().map(|job| job.part).collect();
        known.sort_unstable();
        known.dedup();
        bail!("there is no part or test target {unknown}; parts are {}", known.join(", "));
    }
    Ok(jobs.into_iter().filter(|job| only.is_empty() || only.iter().any(|name| is(job, name))).collect())
}

fn slowest(mut took: Vec<Took>) {
    took.sort_by_key(|took| std::cmp::Reverse(took.time));
    for Took { name, time, idle } in took.iter().take(SLOWEST) {
        exec::say(format_args!("{:>6.0} s  {name}, processors idle {idle} %", time.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_chosen_by_part_and_by_target_and_a_mistake_is_told() {
        let programs =
            [TestProgram::named("api", "api", true), TestProgram::named("controller", "nb", false)];
        let names = |only: &[&str]| -> Result<Vec<String>> {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            let jobs = chosen(all(&programs, true)?, &only)?;
            Ok(jobs.into_iter().map(|job| job.name).collect())
        };
        assert_eq!(names(&["unit"]).unwrap(), ["api api"]);
        assert_eq!(names(&["api", "lint"]).unwrap(), ["lint", "api api"]);
        assert_eq!(names(&[]).unwrap(), ["lint", "documentation examples", "api api"]);
        assert!(names(&["nb"]).unwrap_err().to_string().contains("parts are doc, lint, unit"));
    }
}
