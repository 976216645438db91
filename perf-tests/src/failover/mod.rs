//! `cargo xtask bench failover`: what running flows lose while a process of the network is dead, and when it comes back. [`Part`] says what is
//! killed, [`flows`] run meanwhile, first [`cached`], [`loss`] makes figures of what arrived, [`report`] writes them down.

mod cached;
mod flows;
mod loss;
mod report;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use testbed::cluster::Bed;
use testbed::cluster::config::Datapath;
use testbed::tools::load::now;

use crate::fastpath::cluster::Cluster;
use crate::names::Part;
use crate::record::Machine;
use crate::scenario_file::{Run, ScenarioFile};
use flows::{Flow, Running, Way};
use loss::Loss;

/// How the failures are made.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Exit with 1 and name the rows when a goal is missed.
    #[arg(long)]
    check: bool,
    /// What is killed, instead of everything.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    only: Vec<Part>,
    /// How often each is killed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    times: u16,
    /// Milliseconds for which it stays dead. The flow cache goes on without OVS for 10,000.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=600_000))]
    dead_ms: u64,
    /// Milliseconds for which the flows are watched after all run again.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(500..=600_000))]
    after_ms: u64,
    /// Passed to the node agents.
    #[arg(long, value_enum, default_value_t)]
    datapath: Datapath,
    /// Name of the cluster, which is a new one.
    #[arg(long, default_value = "failover")]
    name: String,
    /// Goals: a scenario of `cargo xtask bench scenario`, or a file.
    #[arg(long, default_value = "failover", value_name = "NAME|FILE")]
    scenario: String,
    /// Write all that was measured to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What one flow lost by one failure.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    killed: Part,
    way: Way,
    udp: bool,
    /// Whether all flows were in the flow caches when it was killed. Never without eBPF.
    cached: bool,
    #[serde(flatten)]
    loss: Loss,
}

impl Args {
    pub(crate) fn run(self) -> Result<std::process::ExitCode> {
        let scenario = ScenarioFile::of(&self.scenario, Run::Failover)?;
        let machine = Machine::now();
        let cluster = Cluster::up(&self.name, self.datapath)?;
        let samples = self.measure(&cluster)?;
        cluster.down()?;
        let mut out = std::io::stdout().lock();
        let missed = report::print(&mut out, &samples, &scenario)?;
        if let Some(path) = &self.json {
            let whole = report::Document {
                machine: &machine,
                datapath: self.datapath,
                dead_ms: self.dead_ms,
                after_ms: self.after_ms,
                samples: &samples,
            };
            std::fs::write(path, serde_json::to_vec_pretty(&whole)?)
                .with_context(|| path.display().to_string())?;
        }
        if self.check && !missed.is_empty() {
            bail!("goals missed: {}", missed.join("; "));
        }
        Ok(std::process::ExitCode::SUCCESS)
    }

    /// One after another, so that what the machine does meanwhile is shared by all.
    fn measure(&self, cluster: &Cluster) -> Result<Vec<Sample>> {
        let mut running = Running::start(cluster)?;
        let mut samples = Vec::new();
        for _ in 0..self.times {
            for &killed in &self.only {
                let found = self.once(cluster.bed()?, &mut running, killed);
                samples.extend(found.with_context(|| format!("killed: {killed}"))?);
            }
        }
        Ok(samples)
    }

    fn once(&self, bed: &Bed, running: &mut Running, killed: Part) -> Result<Vec<Sample>> {
        let nodes = bed.config().node_names();
        let processes = killed.processes(&nodes);
        running.wait()?;
        let cached = self.datapath != Datapath::Ovs && cached::wait(bed)?;
        running.forget();
        let begin = now();
        for (host, process) in &processes {
            bed.host(host).kill(process)?;
        }
        thread::sleep(Duration::from_millis(self.dead_ms));
        for (host, process) in &processes {
            bed.host(host).restart(process)?;
        }
        running.wait()?;
        thread::sleep(Duration::from_millis(self.after_ms));
        let end = now();
        for (host, process) in &processes {
            bed.host(host).check_running(process)?;
        }
        let sample =
            |(flow, loss): (Flow, Loss)| Sample { killed, way: flow.way, udp: flow.udp, cached, loss };
        Ok(running.losses(begin, end)?.into_iter().map(sample).collect())
    }
}
