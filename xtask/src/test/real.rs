//! Real nodes: a chosen dozen of the upstream suite's specs and two of policies, on a cluster of kubelets and
//! containerd.

use anyhow::Result;

use super::tally::Tally;
use crate::conformance;

/// Runs them and counts every spec as a test.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    let counts = conformance::smoke("ovs")?;
    tally.pass(counts.passed);
    for _ in 0..counts.failed {
        tally.fail("upstream specs on real nodes");
    }
    Ok(())
}
