//! `cargo xtask bench churn`: what it costs a connection that pods and endpoints come and go elsewhere. The same connections run at the same time on two
//! clusters, in one of which nothing changes.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;
use testbed::cluster::Bed;
use testbed::traffic::{self, Place};

use super::cluster::Cluster;
use super::rows::ratios;
use super::samples::Samples;
use super::scale::{Phase, Scale};
use super::{say, ways};
use crate::names::Path;
use crate::record::Made;
use crate::scenario_file::Run as Command;

/// How it is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pods a second that are made elsewhere, and deleted half a second later: one after another, each for all rounds.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 50], value_parser = clap::value_parser!(u16).range(1..=1000))]
    pods: Vec<u16>,
    /// Changes a second of the endpoints of services that nobody asks.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(..=1000))]
    endpoints: u16,
    /// Begin of the names of the clusters, which are new ones.
    #[arg(long, default_value = "churn")]
    name: String,
    #[command(flatten)]
    scale: Scale,
}

/// The paths of the cluster in which nothing changes, and of the other one.
const PATHS: [Path; 4] = [Path::Fast, Path::ClusterIp, Path::Churn, Path::ChurnClusterIp];
/// After the beginning of what goes on elsewhere.
const SETTLE: Duration = Duration::from_secs(3);
/// The part of the wanted changes that must be made, or the measurement is of something else.
const ENOUGH: f64 = 0.8;

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let scenario = self.scale.scenario(Command::Churn, &PATHS)?;
        let circumstances = self.scale.circumstances();
        leave(self.scale.cpu)?;
        let quiet = Cluster::up(&format!("{}-quiet", self.name), self.scale.datapath)?;
        let busy = Cluster::up(&format!("{}-busy", self.name), self.scale.datapath)?;
        let routes = [
            (Path::Fast, quiet.across()?),
            (Path::ClusterIp, ways::by_cluster_ip(&quiet)?),
            (Path::Churn, busy.across()?),
            (Path::ChurnClusterIp, ways::by_cluster_ip(&busy)?),
        ];
        let (mut rows, mut phases) = (Vec::new(), Vec::new());
        for &pods in &self.pods {
            let elsewhere = Elsewhere::begin(busy.bed()?, pods, self.endpoints)?;
            std::thread::sleep(SETTLE);
            let samples = self.scale.measure(&routes)?;
            let made = elsewhere.end()?;
            say(&format!(
                "{:.1} pods and {:.1} endpoint changes a second were made",
                made.pods, made.endpoints
            ));
            let enough =
                made.pods >= ENOUGH * f64::from(pods) && made.endpoints >= ENOUGH * f64::from(self.endpoints);
            // Of something else than was asked for nothing is said.
            let judged = if enough { &samples } else { &Samples::default() };
            let new = ratios(&scenario, judged, &[("pods", pods.to_string())]);
            rows.extend(
                new.into_iter()
                    .map(|row| if enough { row } else { row.note(made.text(pods, self.endpoints)) }),
            );
            let objects = json!({"pods": pods, "endpoints": self.endpoints, "made": made});
            phases.push(Phase { objects, samples });
        }
        // Both, whatever becomes of the first.
        let downs = [quiet.down(), busy.down()];
        downs.into_iter().collect::<Result<Vec<()>>>()?;
        self.scale.tell(&circumstances, &rows, &phases)
    }
}

/// Keeps this process, and with it everything that it starts, away from the CPU of the ends: what makes the changes would disturb every slice.
fn leave(cpu: usize) -> Result<()> {
    let (myself, mut rest) = (Pid::from_raw(0), CpuSet::new());
    let mine = sched_getaffinity(myself).context("the CPUs of this process")?;
    let mut left = 0;
    for other in (0..CpuSet::count()).filter(|&other| other != cpu && mine.is_set(other).unwrap_or(false)) {
        rest.set(other)?;
        left += 1;
    }
    ensure!(
        left > 0,
        "--cpu {cpu}: there must be another one, for the clusters and for what changes in them"
    );
    sched_setaffinity(myself, &rest).context("cannot leave the CPU of the ends")
}

/// What goes on elsewhere: a process in the network of the API server. It ends with this.
struct Elsewhere {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Elsewhere {
    fn begin(bed: &Bed, pods: u16, endpoints: u16) -> Result<Self> {
        let mut command = traffic::command(bed, &Place::Host("central".into()), &std::env::current_exe()?)?;
        command.arg("elsewhere").arg("--kubeconfig").arg(bed.config().kubeconfig("admin"));
        command.args(["--pods", &pods.to_string(), "--endpoints", &endpoints.to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("what goes on elsewhere")?;
        let out = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut elsewhere = Self { child, out };
        elsewhere.line().context("it did not begin")?;
        Ok(elsewhere)
    }

    /// Ends it; what it made.
    fn end(mut self) -> Result<Made> {
        drop(self.child.stdin.take());
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("what went on elsewhere: {line:?}"))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        ensure!(!line.is_empty(), "what goes on elsewhere has ended; its error is above");
        Ok(line)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
