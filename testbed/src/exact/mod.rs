//! `testbed exact`: what arrives by the flow cache is what arrives through OVS, byte for byte; nobody gets a packet to a pod by a
//! cache entry that is not his; and what enters OVS before a change teaches nothing after it.

mod bytes;
mod cases;
mod checksum;
mod forge;
mod frame;
mod lessons;
mod race;
mod scene;
mod segments;
mod spoof;
mod tap;
mod tunnel;

use anyhow::{Context, Result, ensure};

use crate::bed::Bed;
use crate::bed::config::{Config, Datapath};
use crate::ui::{Checks, Progress, say};
use bytes::Pass;
use scene::Scene;

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The same packets by the cache and through OVS.
    Bytes,
    /// A pod sends what another pod's cached flow looks like.
    Spoof,
    /// Geneve packets made by hand on the underlay.
    Tunnel,
    /// Geneve packets that a pod sends.
    Forge,
    /// Packets inside OVS while something changes.
    Race,
}

/// Where the fast path would break its promises on purpose, to show that the tests see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sabotage {
    /// The agents ignore changes of the flow table.
    NoBump,
}

impl Part {
    const ALL: &'static [Self] = &[Self::Bytes, Self::Spoof, Self::Tunnel, Self::Forge, Self::Race];
}

/// `testbed exact`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Leave the cluster with eBPF running.
    #[arg(long)]
    keep: bool,
    /// Use a cluster that runs already, and leave it.
    #[arg(long)]
    there: bool,
    /// A control: what must make the test fail.
    #[arg(long, value_enum, hide = true)]
    sabotage: Option<Sabotage>,
}

impl Args {
    /// Runs it on two clusters, the second one without eBPF; true if every check passed.
    pub fn run(self, name: &str) -> Result<bool> {
        let progress = Progress::new();
        let mut checks = Checks::default();
        let parts = if self.only.is_empty() { Part::ALL } else { &self.only };
        let plain = if parts.contains(&Part::Bytes) { plain(name)? } else { Pass::default() };
        progress.done("what OVS alone does");
        let bed = if self.there { Bed::open(name)? } else { up(name, Datapath::Ebpf)? };
        let mut play = || -> Result<bool> {
            let environment: &[(&str, &str)] = match self.sabotage {
                Some(Sabotage::NoBump) => &[("SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS", "1")],
                None => &[],
            };
            let mut scene = Scene::new(&bed, environment)?;
            progress.done("pods");
            for part in parts {
                match part {
                    Part::Bytes => compare(&mut scene, &plain, &mut checks),
                    Part::Spoof => spoof::run(&mut scene, &mut checks),
                    Part::Race => race::run(&mut scene, &mut checks),
                    Part::Tunnel => tunnel::run(&mut scene, &mut checks),
                    Part::Forge => forge::run(&mut scene, &mut checks),
                }
                .with_context(|| format!("{part:?}"))?;
                progress.done(format_args!("{part:?}"));
            }
            Ok(checks.finish())
        };
        let outcome = play();
        if self.keep || self.there {
            say(format_args!("the cluster {name} goes on running"));
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
        }
        outcome
    }
}

/// Brings a cluster of two nodes up, in place of one that an earlier run has left.
fn up(name: &str, datapath: Datapath) -> Result<Bed> {
    if let Some(old) = Bed::rest(name)? {
        say(format_args!("taking down the cluster {name} of an earlier run"));
        old.down()?;
    }
    Bed::up(Config { datapath, ..Config::new(name, 2)? }.with_dual_stack())
}

/// What comes of all cases on a cluster without eBPF.
fn plain(name: &str) -> Result<Pass> {
    let bed = up(&format!("{name}-ovs"), Datapath::Ovs)?;
    let pass = Scene::new(&bed, &[]).and_then(|mut scene| bytes::slow(&mut scene));
    bed.finish(pass.is_ok())?;
    pass
}

fn compare(scene: &mut Scene<'_>, plain: &Pass, checks: &mut Checks) -> Result<()> {
    let fast = bytes::fast(scene)?;
    scene.path("ovs")?;
    let switched = bytes::slow(scene);
    scene.path("auto")?;
    let switched = switched?;
    ensure!(fast.addresses == plain.addresses, "the pods of the two clusters have not the same addresses");
    bytes::compare(scene, [&fast, &switched, plain], checks);
    Ok(())
}
