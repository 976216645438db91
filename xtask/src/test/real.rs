//! Real nodes, with kubelets and containerd: a chosen dozen of the upstream suite's specs and two of policies on one
//! cluster, what happens to machines in their life on another, then the test bed's own tests of such nodes
//! (`testbed/tests/real*.rs`), each on clusters of its own.

use anyhow::Result;

use super::cargo::{self, Selection};
use super::cluster;
use super::tally::Tally;
use crate::{conformance, exec};

/// Runs them; every spec counts as a test.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    match conformance::smoke("ovs") {
        Ok(counts) => {
            tally.pass(counts.passed);
            for _ in 0..counts.failed {
                tally.fail("an upstream spec on real nodes");
            }
        }
        // The tests of the bed may say why.
        Err(error) => tally.fail(format!("upstream specs: {error:#}")),
    }
    cluster::one(tally, "a real machine's life", &["life", "--datapath", "ovs"])?;
    exec::say("tests of real nodes");
    cargo::run(tally, Selection::Real)
}
