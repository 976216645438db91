//! Many nodes that exist as objects only, thousands of pods, and what becomes of the northbound database
//! when it is lost, when the controller dies, and when pods come and go; and whether a controller that starts in a
//! cluster of more than a few hundred pods misses anything.

mod away;
mod contents;
mod controller;
mod digest;
pub(crate) mod elsewhere;
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
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use crate::random::Random;
use controller::Controller;
use figures::Figures;
use run::Run;
use testbed::cluster::Bed;
use testbed::cluster::config::Config;
use testbed::nodes::kubelet;
use testbed::runtime::block_on;
use testbed::ui::{Progress, say};
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
    /// Real packets and a controller that was down while pods, labels and policies changed.
    Gap,
    /// The northbound database is lost and made again from nothing.
    Rebuild,
    /// The time from a pod to its row while pods come and go.
    Churn,
    /// What the controller uses while nothing happens.
    Idle,
    /// The controller is killed, and everything changes while it is down.
    Restart,
}

impl Part {
    /// Those on one control plane full of objects.
    const MANY: [(&str, Self); 4] = [
        ("northbound_database_lost", Self::Rebuild),
        ("churn", Self::Churn),
        ("idle", Self::Idle),
        ("controller_restart", Self::Restart),
    ];
}

/// How much, and what of it.
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
}

/// A trial on the cluster of many simulated nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// All objects are created in the cluster; all other parts need this one.
    Fill,
    Part(Part),
}

/// What `scale` does with ten times as many, in about a minute; and with two real nodes what changed while there was no
/// controller.
#[must_use]
pub fn main() -> ExitCode {
    let small = "--only rebuild,churn,idle,restart --nodes 100 --pods 2000 --services 40 --policies 100 --rate 20 \
                 --churn-seconds 10 --idle-seconds 5 --limit 120";
    Program::new("scale", Settings::from_environment())
        .with_all(flags::<Args>("--only gap").groups("scale"))
        .with_all(flags::<Args>(small).groups("scale"))
        .main()
}

impl Args {
    /// A trial for each part: `gap` on two real nodes, the others on one control plane full of objects.
    #[must_use]
    pub fn groups(self, cluster: &str) -> Vec<Group> {
        let has = |part: Part| self.only.is_empty() || self.only.contains(&part);
        let (name, limit) = (cluster.to_owned(), Duration::from_secs(self.limit) * 4);
        let mut groups = Vec::new();
        if has(Part::Gap) {
            let (name, program) = (name.clone(), self.controller.clone());
            let cases = vec![Case::new("controller_away", gap::TRIAL, ())];
            groups.push(Group::new("real_nodes", cases, vec![name.clone()], move |settings, jobs| {
                settings.on_cluster(Config::new(&name, 2)?, jobs, |bed, jobs| {
                    jobs.each(|(), checks| gap::run(bed, program.clone(), checks));
                    Ok(())
                })
            }));
        }
        let parts = Part::MANY.iter().filter(|(_, part)| has(*part));
        let mut cases: Vec<_> =
            parts.map(|&(name, part)| Case::new(name, limit, Trial::Part(part))).collect();
        if !cases.is_empty() {
            cases.insert(0, Case::new("filled", limit, Trial::Fill));
            groups.push(Group::new("simulated_nodes", cases, vec![name.clone()], move |settings, jobs| {
                self.many(&name, settings, jobs)
            }));
        }
        groups
    }

    fn size(&self) -> Size {
        let Self { nodes, pods, services, policies, .. } = *self;
        Size { nodes, pods, services, policies }
    }

    fn many(&self, name: &str, settings: &Settings, jobs: &mut Jobs<Trial>) -> Result<()> {
        self.size().validate()?;
        // No node is real, and the controller is started when everything else has settled.
        let usual = Config::new(name, 1)?;
        let verify_interval = self.verify_interval.unwrap_or(usual.verify_interval);
        let cluster_subnets = SUBNETS.to_owned();
        let config = Config { nodes: 0, plugin: false, cluster_subnets, verify_interval, ..usual };
        settings.on_cluster(config, jobs, |bed, jobs| self.on(bed, jobs))
    }

    fn on(&self, bed: &Bed, jobs: &mut Jobs<Trial>) -> Result<()> {
        let seed = self.seed.unwrap_or_else(Random::seed);
        say(format_args!("seed {seed}"));
        let central = bed.host("central");
        // They are not needed here, and would act on nodes that send no heartbeat.
        central.kill("kube-controller-manager")?;
        central.kill("scheduler")?;
        if !self.northd {
            central.kill("ovn-northd")?;
        }
        let controller = Controller::start(bed, self.controller.clone())?;
        let mut random = Random::new(seed);
        let world = World::new(self.size(), &mut random);
        bed.enter_network("central")?;
        let mut figures = Figures::new(self.judge);
        block_on(async {
            let client = kubelet::client(&bed.config().kubeconfig("admin")).await?;
            let progress = Progress::new();
            let mut run = Run { args: self, bed, controller, client, random, world, progress };
            let mut filled = false;
            while let Some(mut job) = jobs.next() {
                let outcome = run.trial(job.case, &mut filled, &mut job.checks, &mut figures).await;
                job.done(outcome);
            }
            anyhow::Ok(())
        })?;
        figures.print();
        Ok(())
    }
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
