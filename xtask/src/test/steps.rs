//! Steps that this program runs itself, each in a process of its own so that it can run beside other jobs.

use anyhow::{Context, Result, bail};

use super::jobs::{self, Job, Lane};
use super::programs;
use crate::tally::{CLOSING, Tally};
use crate::{build, conformance, exec, lint, vm_test};

/// A step by its name.
struct Step {
    name: &'static str,
    part: &'static str,
    /// When it runs; in a quick run before everything else.
    lane: Lane,
    is_quick: bool,
    /// The command line of this program is for the step that compares documents with it.
    run: fn(&mut Tally, &clap::Command) -> Result<()>,
}

const STEPS: &[Step] = &[
    // The longest of those in the background comes first.
    Step {
        name: "kernel datapath in a virtual machine",
        part: "vm",
        lane: Lane::Background,
        is_quick: false,
        run: |tally, _| vm_test::part(tally),
    },
    Step { name: "lint", part: "lint", lane: Lane::Idle, is_quick: true, run: checks },
    Step {
        name: "documentation examples",
        part: "doc",
        lane: Lane::Idle,
        is_quick: true,
        run: |tally, _| doc_tests(tally),
    },
    Step {
        name: "upstream specs on real nodes",
        part: "real",
        lane: Lane::Real,
        is_quick: false,
        run: |tally, _| specs(tally),
    },
];

/// The jobs of all steps, or of the quick ones.
pub(super) fn jobs(quick: bool) -> Result<Vec<Job>> {
    let me = std::env::current_exe().context("own executable")?;
    let steps = STEPS.iter().filter(|step| step.is_quick || !quick);
    let job = |step: &Step| {
        let lane = if quick { Lane::First } else { step.lane };
        let mut command = if lane == Lane::Idle { jobs::at_idle_priority(&me) } else { exec::command(&me) };
        command.args(["test", "--step", step.name]);
        let target = step.part.to_owned();
        Job { name: step.name.to_owned(), part: step.part, target, lane, reports_itself: false, command }
    };
    Ok(steps.map(job).collect())
}

/// Runs one step in this process; the last line of output is for [`jobs`].
pub(super) fn run(name: &str, verbs: &clap::Command) -> Result<()> {
    let Some(step) = STEPS.iter().find(|step| step.name == name) else { bail!("there is no step {name}") };
    let mut tally = Tally::default();
    if let Err(error) = (step.run)(&mut tally, verbs) {
        tally.fail(format!("{name}: {error:#}"));
    }
    tally.report();
    exec::say(format_args!("{} {}", CLOSING, tally.closing_line()));
    if tally.is_good() { Ok(()) } else { std::process::exit(1) }
}

fn checks(tally: &mut Tally, verbs: &clap::Command) -> Result<()> {
    let failed = lint::failures(verbs);
    for check in lint::CHECKS {
        if failed.contains(check) {
            tally.fail(format!("lint: {check}"));
        } else {
            tally.pass(1);
        }
    }
    Ok(())
}

/// The examples in documentation comments.
fn doc_tests(tally: &mut Tally) -> Result<()> {
    let mut command = exec::cargo();
    command.args(["test", "--workspace", "--doc", "--features", build::TEST_HOOKS]);
    command.env("PATH", programs::path_with_cache()?);
    let out = command.output().context("cannot start cargo test --doc")?;
    let output = String::from_utf8_lossy(&out.stdout);
    exec::say(&output);
    let before = tally.failures();
    tally.read("documentation examples", &output);
    if !out.status.success() && tally.failures() == before {
        tally.fail(format!("cargo test --doc failed: {}", String::from_utf8_lossy(&out.stderr)));
    }
    Ok(())
}

/// About a dozen specs of the upstream suite and two of network policies; every spec counts as a test.
fn specs(tally: &mut Tally) -> Result<()> {
    let counts = conformance::smoke("ovs")?;
    tally.pass(counts.passed);
    for _ in 0..counts.failed {
        tally.fail("an upstream spec on real nodes");
    }
    Ok(())
}
