//! `cargo xtask bench`: the performance tests, in release mode.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{build, exec, paths, setup};

mod compare;

/// Not one of `perf-tests`: it compares the traffic tool with others.
const TRAFFIC_CHECK: &str = "traffic-check";

/// Sets up, builds everything that is measured in release mode, and runs `perf-tests`. Its exit code is passed on, as it
/// distinguishes kinds of failure.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if let Some((TRAFFIC_CHECK, rest)) = args.split_first().map(|(verb, rest)| (verb.as_str(), rest)) {
        return traffic_check(rest);
    }
    if let Some((commits, rest)) = compare::commits(args)? {
        return compare::run(&commits, rest);
    }
    setup::ensure()?;
    // In one go: cargo would build what they share anew for another set of packages.
    build::release(&["perf-tests"])?;
    pass_on(exec::command(paths::target().join("release/perf-tests")).args(args))
}

/// The traffic tool against others of its kind; needs nothing else of the workspace.
fn traffic_check(args: &[String]) -> Result<()> {
    let packages = ["-p", "traffic", "--bin", "slipstream-traffic", "--example", "traffic_check"];
    exec::run(exec::cargo().args(["build", "--release"]).args(packages))?;
    let release = paths::target().join("release");
    let mut check = exec::command(release.join("examples/traffic_check"));
    pass_on(check.arg(release.join("slipstream-traffic")).args(args))
}

/// Runs a program; its exit code is that of this one.
fn pass_on(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if status.success() { Ok(()) } else { std::process::exit(status.code().unwrap_or(1)) }
}
