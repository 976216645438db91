//! `testbed scale`: many nodes that exist as objects only, thousands of pods, and what becomes of the northbound database
//! when it is lost, when the controller dies, and when pods come and go; and whether a controller that starts in a
//! cluster of more than a few hundred pods misses anything.

mod away;
mod contents;
mod controller;
mod digest;
mod figures;
mod gap;
mod journal;
mod latency;
mod load;
mod node;
mod order;
mod policy;
mod rebuild;
mod run;
pub(crate) mod stubs;
mod watch;
mod world;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::bed::Bed;
use crate::bed::config::Config;
use crate::cli::block_on;
use crate::nodes::kubelet;
use crate::random::Random;
use crate::ui::{Checks, Progress, say};
use controller::Controller;
use figures::Figures;
use run::Run;
use world::{Size, World};

/// Room for a thousand nodes.
const SUBNETS: &str = "10.128.0.0/14/24";
/// The database's socket inside its host.
const SOCKET: &str = "/run/ovn/ovnnb_db.sock";
/// Differences that are shown.
const SHOWN: usize = 5;

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Real packets and a controller that was away while pods, labels and policies changed.
    Gap,
    /// The northbound database is lost and made again from nothing.
    Rebuild,
    /// The time from a pod to its row while pods come and go.
    Churn,
    /// What the controller uses while nothing happens.
    Idle,
    /// The controller is killed, and everything changes while it is away.
    Restart,
}

/// `testbed scale`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Simulated nodes.
    #[arg(long, default_value_t = 500)]
    nodes: usize,
    /// Pods on them.
    #[arg(long, default_value_t = 20_000)]
    pods: usize,
    /// Services with a node port.
    #[arg(long, default_value_t = 200)]
    services: usize,
    /// Network policies.
    #[arg(long, default_value_t = 1000)]
    policies: usize,
    /// Pods made and deleted in a second.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// Seconds of that.
    #[arg(long, default_value_t = 60)]
    churn_seconds: u32,
    /// Seconds without any change, in which the controller's use of the processor is measured.
    #[arg(long, default_value_t = 30)]
    idle_seconds: u64,
    /// Seconds between two verifications of the database; the usual of a cluster under test is short, and costs the
    /// controller more than it would anywhere else.
    #[arg(long)]
    verify_interval: Option<u32>,
    /// The controller to run, such as one of a release build; else the one beside this program.
    #[arg(long)]
    controller: Option<PathBuf>,
    /// Figures beyond their bounds are failures: for a release build on a machine that does nothing else.
    #[arg(long)]
    judge: bool,
    /// Run northd too, which makes logical flows of it all.
    #[arg(long)]
    northd: bool,
    /// Seconds that the cluster may take to settle after a change.
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Makes what is random repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
}

impl Args {
    /// Runs it on a cluster of that name; true if everything held.
    pub fn run(self, name: &str) -> Result<bool> {
        let has = |part: Part| self.only.is_empty() || self.only.contains(&part);
        let mut checks = Checks::default();
        if has(Part::Gap) {
            gap::run(name, self.controller.clone(), self.keep, &mut checks)?;
        }
        if [Part::Rebuild, Part::Churn, Part::Idle, Part::Restart].into_iter().any(has) {
            if self.keep && has(Part::Gap) {
                return Err(anyhow!("--keep is for one cluster: give the parts by --only, `gap` by itself"));
            }
            self.many(name, &mut checks)?;
        }
        Ok(checks.finish())
    }

    fn size(&self) -> Size {
        let Self { nodes, pods, services, policies, .. } = *self;
        Size { nodes, pods, services, policies }
    }

    fn many(&self, name: &str, checks: &mut Checks) -> Result<()> {
        self.size().validate()?;
        take_down(name)?;
        // No node is real, and the controller is started when the rest is at rest.
        let usual = Config::new(name, 1)?;
        let verify_interval = self.verify_interval.unwrap_or(usual.verify_interval);
        let cluster_subnets = SUBNETS.to_owned();
        let config = Config { nodes: 0, plugin: false, cluster_subnets, verify_interval, ..usual };
        let bed = Bed::up(config)?;
        let before = checks.failures();
        let outcome = self.on(&bed, checks);
        finish(bed, self.keep, outcome.is_ok() && checks.failures() == before)?;
        outcome
    }

    fn on(&self, bed: &Bed, checks: &mut Checks) -> Result<()> {
        let seed = self.seed.unwrap_or_else(Random::seed);
        say(format_args!("seed {seed}"));
        let central = bed.host("central");
        // Nobody needs them here, and they would judge nodes that give no sign of life.
        central.kill("kube-controller-manager")?;
        central.kill("scheduler")?;
        if !self.northd {
            central.kill("ovn-northd")?;
        }
        let controller = Controller::start(bed, self.controller.clone())?;
        let mut random = Random::new(seed);
        let world = World::new(self.size(), &mut random);
        let mut figures = Figures::new(self.judge);
        in_network(bed, async || {
            let client = kubelet::client(&bed.config().kubeconfig("admin")).await?;
            let progress = Progress::new();
            let mut run = Run { args: self, bed, controller, client, random, world, progress };
            run.all(checks, &mut figures).await
        })?;
        figures.print();
        Ok(())
    }
}

/// Runs something in the network of the control plane, in a thread of its own.
fn in_network<T: Send>(bed: &Bed, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let run = || {
            bed.enter_network("central")?;
            block_on(work())
        };
        let thread = thread::Builder::new().name("control".into()).spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
    })
}

/// Takes down what an earlier run has left.
fn take_down(name: &str) -> Result<()> {
    if let Some(old) = Bed::rest(name)? {
        say(format_args!("taking down the cluster {name} of an earlier run"));
        old.down()?;
    }
    Ok(())
}

/// Takes a cluster down, unless it is to be kept.
fn finish(bed: Bed, keep: bool, good: bool) -> Result<()> {
    if keep {
        say(format_args!("the cluster {} goes on running", bed.config().name));
        return Ok(());
    }
    bed.finish(good)
}

/// Tries until it holds.
async fn eventually(limit: Duration, what: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + limit;
    while let Err(error) = check() {
        if Instant::now() > end {
            return Err(error).with_context(|| format!("gave up after {limit:?}: {what}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

fn told(outcome: Result<()>) -> Result<String, String> {
    told_text(outcome.map(|()| String::new()))
}

fn told_text(outcome: Result<String>) -> Result<String, String> {
    outcome.map_err(|error| format!("{error:#}"))
}
