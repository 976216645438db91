//! `testbed life`: what happens to machines in their life, on real nodes: many pods at once, processes that are
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
mod reboot;
mod runtimes;
mod skew;
mod static_pod;
mod stream;
mod switch;
mod tidy;
mod world;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::bed::Bed;
use crate::bed::config::Runtime;
use crate::cli::Shape;
use crate::ui::{Checks, Progress, say};
use addresses::Addresses;
use world::World;

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

/// `testbed life`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these scenes.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(SCENES.iter().map(|s| s.0)))]
    only: Vec<String>,
    /// Pods that the scene `burst` starts at once.
    #[arg(long, default_value_t = 60)]
    pods: u16,
    /// Play on the cluster of that name as it is, and leave it running.
    #[arg(long)]
    there: bool,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    shape: Shape,
}

impl Args {
    /// Plays on a cluster of that name; true if all went well.
    pub fn run(mut self, name: &str) -> Result<bool> {
        if self.there {
            return self.play(&Bed::open(name)?);
        }
        self.shape.runtime = Runtime::Containerd;
        let bed = self.shape.bring_up(name)?;
        let outcome = self.play(&bed);
        if self.keep {
            say(format_args!("the cluster {name} goes on running"));
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
        }
        outcome
    }

    fn play(&self, bed: &Bed) -> Result<bool> {
        if bed.config().runtime != Runtime::Containerd || bed.config().nodes < 2 {
            bail!("two real nodes are needed: `--runtime containerd --nodes 2`");
        }
        let progress = Progress::new();
        let world = World::new(bed, self.pods)?;
        progress.done("two pods run on each of two nodes");
        let mut table = Table::default();
        let addresses = Addresses::watch(bed)?;
        for (name, scene) in SCENES {
            if self.only.is_empty() || self.only.iter().any(|only| only == name) {
                table.row(name, || scene(&world));
            }
        }
        table.row("addresses", || addresses.end());
        table.row("nothing-left", || world.end());
        Ok(table.finish())
    }
}

/// Prints a row for each scene as soon as it is over, and in the end which failed.
#[derive(Default)]
struct Table {
    checks: Checks,
    failed: Vec<String>,
}

impl Table {
    fn row(&mut self, name: &str, scene: impl FnOnce() -> Result<String>) {
        let begin = Instant::now();
        let outcome = scene();
        let seconds = begin.elapsed().as_secs_f64();
        self.checks.count(outcome.is_ok());
        let (mark, seen) = match outcome {
            Ok(seen) => ("ok", seen),
            Err(error) => {
                self.failed.push(name.to_owned());
                ("FAILED", format!("{error:#}"))
            }
        };
        say(format_args!("{mark:<6}  {name:<20}  {seconds:>6.1} s  {seen}"));
    }

    fn finish(&self) -> bool {
        let good = self.checks.finish();
        if !self.failed.is_empty() {
            say(format_args!("failed: {}", self.failed.join(", ")));
        }
        good
    }
}
