//! Bad input and missing services. Each time there must be a clear error, everything else must continue, the cluster must recover, and
//! in the end nothing may be left behind.

mod annotations;
mod calls;
mod exhaustion;
mod flags;
mod forgery;
mod outage;
mod untrusted_input;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::harness::Checks;
use crate::harness::{self, Case, Group, Jobs, Program, Settings};
use testbed::cluster::Bed;
use testbed::cluster::config::{Config, Datapath};
use testbed::ui::Progress;
use world::World;

/// How long a kind of fault may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Room for four pods on each node, so that it is soon exhausted.
const SUBNETS: &str = "10.244.0.0/16/29";

/// On what to test.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What the node agents forward with.
    #[arg(long, value_enum, default_value_t)]
    datapath: Datapath,
}

/// A kind of fault.
type Scene = fn(&mut World<'_>) -> Result<()>;

/// By name, in the order in which they are injected.
const SCENES: &[(&str, Scene)] = &[
    ("flags_and_kubeconfigs", flags::run),
    ("cni_calls", calls::run),
    ("malformed_annotations", annotations::run),
    ("refused_annotations", forgery::run),
    ("disbelieved_annotations_names_addresses", untrusted_input::run),
    ("exhausted_range", exhaustion::run),
    ("databases_away", outage::run),
];

/// All faults.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("fault_injection", Settings::from_environment())
        .with(harness::flags::<Args>("").group("", "faults"))
        .main()
}

impl Args {
    /// A trial for each kind of fault, and one that looks for what is left, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let mut cases: Vec<_> =
            SCENES.iter().map(|&(name, scene)| Case::new(name, LIMIT, Some(scene))).collect();
        cases.push(Case::new("nothing_left", LIMIT, None));
        let name = cluster.to_owned();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            let Self { datapath } = self;
            let config = Config { datapath, cluster_subnets: SUBNETS.to_owned(), ..Config::new(&name, 2)? };
            settings.on_cluster(config, jobs, play)
        })
    }
}

/// Without a scene: whether nothing is left of all before.
fn play(bed: &Bed, jobs: &mut Jobs<Option<Scene>>) -> Result<()> {
    let progress = Progress::new();
    World::prepare(bed)?;
    let before = World::new(bed, &mut Checks::default()).quiet()?;
    progress.done("the state to come back to is taken");
    jobs.each(|scene, checks| {
        let mut world = World::new(bed, checks);
        match scene {
            Some(scene) => scene(&mut world)?,
            None => world.check("nothing of all this is left", |world| {
                world.eventually(Duration::from_secs(60), || before.equals(&world.snapshot()?))
            }),
        }
        Ok(())
    });
    Ok(())
}
