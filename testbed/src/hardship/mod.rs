//! `testbed hardship`: bad input and things that are away. Each time there must be a clear error, everybody else must go
//! on, it must heal, and in the end nothing may be left.

mod annotations;
mod believed;
mod calls;
mod exhaustion;
mod flags;
mod forgery;
mod outage;
mod world;

use std::time::Duration;

use anyhow::Result;

use crate::bed::Bed;
use crate::bed::config::{Config, Datapath};
use crate::ui::{Checks, Progress, say};
use world::World;

/// Room for four pods on each node, so that it is soon exhausted.
const SUBNETS: &str = "10.244.0.0/16/29";

/// `testbed hardship`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What the node agents forward with.
    #[arg(long, value_enum, default_value_t)]
    datapath: Datapath,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
}

impl Args {
    /// Runs it on a cluster of that name; true if everything was refused clearly and healed.
    pub fn run(self, name: &str) -> Result<bool> {
        let Self { datapath, keep } = self;
        if let Ok(old) = Bed::open(name) {
            say(format_args!("taking down the cluster {name} of an earlier run"));
            old.down()?;
        }
        let config = Config { datapath, cluster_subnets: SUBNETS.to_owned(), ..Config::new(name, 2)? };
        let bed = Bed::up(config)?;
        let outcome = all(&bed);
        if keep {
            say(format_args!("the cluster {name} goes on running"));
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
        }
        outcome
    }
}

fn all(bed: &Bed) -> Result<bool> {
    let progress = Progress::new();
    let mut checks = Checks::default();
    let mut world = World::new(bed, &mut checks)?;
    let before = world.quiet()?;
    progress.done("the state to come back to is taken");
    flags::run(&mut world)?;
    progress.done("flags and kubeconfigs");
    calls::run(&mut world)?;
    progress.done("CNI calls");
    annotations::run(&mut world)?;
    progress.done("annotations");
    forgery::run(&mut world)?;
    progress.done("annotations that the API server refuses");
    believed::run(&mut world)?;
    progress.done("annotations, names and addresses that the controller does not believe");
    exhaustion::run(&mut world)?;
    progress.done("a full range");
    outage::run(&mut world)?;
    progress.done("databases that are away");
    world.check("nothing of all this is left", |world| {
        world.eventually(Duration::from_secs(60), || before.equals(&world.snapshot()?))
    });
    Ok(checks.finish())
}
