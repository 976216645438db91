//! What happens to machines in their life, on real nodes: many pods at once, processes that are
//! restarted or crash, nodes that are drained, deleted and rebooted, files that are broken by hand, disks that are
//! full. Each time pods keep their network or get it back, no address is given twice, and nothing is left behind.

mod addresses;
mod agent;
mod burst;
mod cni_calls;
mod cni_files;
mod drain;
mod full_disk;
mod images;
mod leftovers;
mod reboot;
mod runtimes;
mod skew;
mod static_pod;
mod stream;
mod switch;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use addresses::Addresses;
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::cluster::config::Runtime;
use testbed::ui::Progress;
use world::World;

/// How long a scene may take.
const LIMIT: Duration = Duration::from_secs(420);

/// A scene returns what was seen, or what was wrong.
type Scene = fn(&World<'_>) -> Result<String>;

/// By name, in the order in which they are played.
const SCENES: &[(&str, Scene)] = &[
    ("burst", burst::run),
    ("static-pod", static_pod::run),
    ("kubelet", runtimes::kubelet),
    ("containerd", runtimes::containerd),
    ("agent", agent::run),
    ("ovn-controller", switch::ovn_controller),
    ("vswitchd", switch::vswitchd),
    ("missing-image", images::run),
    ("cni-files", cni_files::mended),
    ("cni-files-agent-away", cni_files::agent_away),
    ("cni-versions", cni_calls::run),
    ("version-skew", skew::run),
    ("full-disk", full_disk::state),
    ("full-disk-ovs", full_disk::database),
    ("drain", drain::run),
    ("reboot", reboot::run),
];

/// What to run, and on what.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these scenes.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(SCENES.iter().map(|s| s.0)))]
    only: Vec<String>,
    /// Pods that the scene `burst` starts at once.
    #[arg(long, default_value_t = 60)]
    pods: u16,
    #[command(flatten)]
    shape: Shape,
}

/// A trial.
#[derive(Clone, Copy)]
enum Trial {
    Scene(Scene),
    /// No address was given twice meanwhile.
    Addresses,
    /// Nothing is left when the pods are gone.
    NothingLeft,
}

/// All scenes, without eBPF.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("node_lifecycle", Settings::from_environment())
        .with(flags::<Args>("--datapath ovs").group("", "lifecycle"))
        .main()
}

impl Args {
    /// A trial for each scene, on a cluster of that name; two more judge what they leave.
    #[must_use]
    pub fn group(mut self, prefix: &'static str, cluster: &str) -> Group {
        let chosen = |name: &&str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let scenes = SCENES.iter().filter(|(name, _)| chosen(name));
        let mut cases: Vec<_> =
            scenes.map(|&(name, scene)| Case::new(name, LIMIT, Trial::Scene(scene))).collect();
        cases.push(Case::new("addresses", LIMIT, Trial::Addresses));
        cases.push(Case::new("nothing-left", LIMIT, Trial::NothingLeft));
        let name = cluster.to_owned();
        self.shape.runtime = Runtime::Containerd;
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| self.play(bed, jobs))
        })
    }

    fn play(&self, bed: &Bed, jobs: &mut Jobs<Trial>) -> Result<()> {
        if bed.config().runtime != Runtime::Containerd || bed.config().nodes < 2 {
            bail!("two real nodes are needed: `--runtime containerd --nodes 2`");
        }
        let progress = Progress::new();
        let world = World::new(bed, self.pods)?;
        progress.done("two pods run on each of two nodes");
        let mut addresses = Some(Addresses::watch(bed)?);
        while let Some(mut job) = jobs.next() {
            let (what, outcome) = match job.case {
                Trial::Scene(scene) => ("the scene", scene(&world)),
                Trial::Addresses => {
                    let outcome = addresses.take().context("addresses").and_then(Addresses::end);
                    ("no address is given twice", outcome)
                }
                Trial::NothingLeft => ("nothing is left", world.end()),
            };
            job.checks.check(what, outcome.map_err(|error| format!("{error:#}")));
            job.done(Ok(()));
        }
        Ok(())
    }
}
