//! `cargo xtask bench`: the performance tests, in release mode.

use anyhow::Result;

use crate::{demo, exec, setup};

/// Sets up, builds everything that is measured in release mode, and hands over to `perf-tests`.
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
    exec::run(exec::cargo().args(["run", "--release", "-p", "perf-tests", "--"]).args(args))
}
