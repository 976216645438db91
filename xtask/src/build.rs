//! Building the programs of a cluster.

use anyhow::Result;

use crate::exec;

/// Features of the programs that tests need and no release has.
pub(crate) const TEST_HOOKS: &str = "node-agent/test-hooks,controller/test-hooks";

/// Builds the programs of a cluster in the dev profile, and the packages `more`.
pub(crate) fn programs(more: &[&str]) -> Result<()> {
    exec::say("building");
    let mut cargo = exec::cargo();
    cargo.args(["build", "--quiet", "--features", TEST_HOOKS]);
    for package in ["controller", "node-agent", "slipstream-cni", "slipctl", "testbed"].iter().chain(more) {
        cargo.args(["-p", package]);
    }
    exec::run(&mut cargo)
}
