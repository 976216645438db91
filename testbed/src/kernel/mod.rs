//! `testbed kernel`: a cluster on the datapath of this machine's kernel, with its module `openvswitch`. Traffic, a policy
//! under traffic, the programs, and the fast path.

mod agent;
mod flows;
mod programs;
mod reset;

use anyhow::Result;

use crate::bed::Bed;
use crate::bed::config::{Datapath, OvsDatapath};
use crate::cli::Shape;
use crate::demo;
use crate::ui::{Checks, Progress, say};

/// `testbed kernel`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Which path the nodes must have chosen.
    #[arg(long, value_enum, default_value = "ebpf")]
    expect: Datapath,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    shape: Shape,
}

impl Args {
    /// Runs it on a cluster of that name; true if everything holds.
    pub fn run(self, name: &str) -> Result<bool> {
        let Self { expect, keep, mut shape } = self;
        shape.ovs_datapath = OvsDatapath::System;
        let progress = Progress::new();
        let bed = shape.bring_up(name)?;
        let outcome = judge(&bed, expect == Datapath::Ebpf, &progress);
        if !keep {
            bed.finish(matches!(outcome, Ok(true)))?;
            progress.done("taken down, nothing is left");
        }
        outcome
    }
}

fn judge(bed: &Bed, ebpf: bool, progress: &Progress) -> Result<bool> {
    let mut checks = Checks::default();
    demo::play(bed, progress, &mut checks)?;
    for node in bed.config().node_names() {
        agent::check(bed, &node, ebpf, &mut checks);
        if ebpf {
            programs::check(bed, &node, &mut checks);
        }
    }
    flows::check(bed, ebpf, &mut checks)?;
    progress.done("flows and policy tried");
    if ebpf {
        reset::check(bed, &mut checks);
        progress.done("a long connection reset");
    }
    say("");
    Ok(checks.finish())
}
