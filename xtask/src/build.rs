//! Building the programs of a cluster.

use anyhow::Result;

use crate::exec;

/// Features of the programs that tests need and no release has.
pub(crate) const TEST_HOOKS: &str = "node-agent/test-hooks,controller/test-hooks";

/// Packages of a cluster's programs.
pub(crate) const PROGRAMS: [&str; 5] = ["controller", "node-agent", "slipstream-cni", "slipctl", "testbed"];

/// Builds the programs of a cluster in the dev profile, and the packages `more`.
pub(crate) fn programs(more: &[&str]) -> Result<()> {
    exec::say("building");
    build(&["--quiet"], more)
}

/// Builds the programs of a cluster in the release profile, and the packages `more`.
pub(crate) fn release(more: &[&str]) -> Result<()> {
    build(&["--release"], more)
}

fn build(flags: &[&str], more: &[&str]) -> Result<()> {
    let mut cargo = exec::cargo();
    cargo.arg("build").args(flags).args(["--features", TEST_HOOKS]);
    for package in PROGRAMS.iter().chain(more) {
        cargo.args(["-p", package]);
    }
    exec::run(&mut cargo)
}
