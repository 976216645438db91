//! `cargo xtask bench`: the performance tests, in release mode.

use anyhow::{Context, Result};

use crate::{demo, exec, setup};

/// Sets up, builds everything that is measured in release mode, and runs `perf-tests`. Its exit code is passed on, as it
/// distinguishes kinds of failure.
pub(crate) fn run(args: &[String]) -> Result<()> {
    setup::ensure()?;
    exec::run(exec::cargo().args([
        "build",
        "--release",
        "-p",
        "controller",
        "-p",
        "node-agent",
        "-p",
        "testbed",
        "--features",
        demo::TEST_HOOKS,
    ]))?;
    let mut run = exec::cargo();
    run.args(["run", "--release", "-p", "perf-tests", "--"]).args(args);
    let status = run.status().context("cannot start cargo")?;
    if status.success() { Ok(()) } else { std::process::exit(status.code().unwrap_or(1)) }
}
