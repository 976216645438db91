//! Every task and thread of the first node's agent, and of the controller, is ended, one after another. Each time the process must exit
//! with the name of the task, and become ready when it is started again, as a cluster does. Running flows must continue, pods made
//! meanwhile must be served, and in the end nothing may be lost or left behind. Then another program changes what the agent made.
//! Finally the API server hangs while OVS is restarted: what packets need must come back without it.

mod api_silent;
mod external_changes;
mod process;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use crate::expect::{self, Expect};
use crate::flow_cache_invariants::scene::{Scene, Seen};
use crate::harness::Checks;
use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use crate::snapshot::Snapshot;
use process::Process;
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::exec;
use testbed::pod;
use testbed::runtime::block_on;
use testbed::tools::load::now;
use testbed::traffic::{Dial, Place};
use testbed::ui::Progress;

/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(600);
/// Namespace of the pods that are made while a process is down.
const NAMESPACE: &str = "supervise";
/// The node whose agent is ended.
const NODE: &str = "n1";
/// How long a flow may be silent: nothing that carries packets is touched.
const SILENCE: Duration = Duration::from_secs(1);
/// How many messages of a UDP flow may be lost: one is sent every 2 ms, and a busy machine loses some by itself.
const LOST: u64 = 25;
/// How long things may take to come to rest in the end.
const REST: Duration = Duration::from_secs(60);

/// What to end, and on what.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only tasks and threads of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

/// One part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Every task and thread of an agent.
    Agent,
    /// Every task and thread of the controller.
    Controller,
    Settings,
    Configuration,
    Silent,
    NothingLeft,
}

impl Part {
    const ALL: [(&str, Self); 6] = [
        ("agent_tasks", Self::Agent),
        ("controller_tasks", Self::Controller),
        ("ovn_controller_settings_put_back", Self::Settings),
        ("foreign_cni_configuration_is_a_condition", Self::Configuration),
        ("api_server_stands_still", Self::Silent),
        ("nothing_left", Self::NothingLeft),
    ];
}

/// All tasks and threads.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("supervision", Settings::from_environment())
        .with(flags::<Args>("--datapath ebpf").group("", "supervision"))
        .main()
}

impl Args {
    /// A trial for each part, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let cases = Part::ALL.map(|(name, part)| Case::new(name, LIMIT, part)).to_vec();
        let name = cluster.to_owned();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| self.play(bed, jobs))
        })
    }

    fn play(&self, bed: &Bed, jobs: &mut Jobs<Part>) -> Result<()> {
        let progress = Progress::new();
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        bed.apply(&namespace.to_string())?;
        bed.enter_network("central")?;
        block_on(async {
            let scene = Scene::new(bed).await?;
            let before = tokio::task::block_in_place(|| quiet(bed))?;
            progress.done("the state to come back to is taken");
            while let Some(mut job) = jobs.next() {
                let mut run = Run { bed, checks: &mut job.checks, scene: &scene, only: &self.only };
                let outcome = run.part(job.case, &before).await;
                job.done(outcome);
            }
            scene.end().await
        })?;
        bed.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]).map(drop)
    }
}

struct Run<'r, 'a> {
    bed: &'a Bed,
    checks: &'r mut Checks,
    scene: &'r Scene<'a>,
    only: &'r [String],
}

impl Run<'_, '_> {
    async fn part(&mut self, part: Part, before: &Snapshot) -> Result<()> {
        let bed = self.bed;
        let (what, outcome) = tokio::task::block_in_place(|| match part {
            Part::Agent | Part::Controller => ("", None),
            Part::Settings => (
                "settings of ovn-controller that somebody changes are put back",
                Some(external_changes::settings(bed, NODE)),
            ),
            Part::Configuration => (
                "a CNI configuration before ours is a condition of the node",
                Some(external_changes::configuration(bed, NODE)),
            ),
            Part::Silent => (
                "the API server stands still: the bridge's flows come back without it",
                Some(api_silent::run(bed, NODE)),
            ),
            Part::NothingLeft => {
                let rest =
                    exec::retry(REST, "nothing is lost or left", || before.equals(&Snapshot::take(bed)?));
                ("nothing is lost or left", Some(rest.map(|()| String::new())))
            }
        });
        match (part, outcome) {
            (Part::Controller, _) => self.all(&Process::controller(bed)).await?,
            (_, Some(outcome)) => self.checks.check(what, said(outcome)),
            (_, None) => self.all(&Process::agent(bed, NODE)).await?,
        }
        Ok(())
    }

    /// Ends every task and thread of a process.
    async fn all(&mut self, process: &Process<'_>) -> Result<()> {
        let tasks = tokio::task::block_in_place(|| process.tasks())?;
        ensure!(tasks.len() > 1, "the {} has only these: {tasks:?}", process.name());
        for task in tasks.iter().filter(|task| self.only.is_empty() || self.only.contains(task)) {
            self.one(process, task).await;
        }
        Ok(())
    }

    /// Ends one; what comes of it is counted.
    async fn one(&mut self, process: &Process<'_>, task: &str) {
        // Of the time before nothing is of interest.
        self.scene.seen().await;
        let from = now();
        let done = tokio::task::block_in_place(|| end(self.bed, process, task));
        let flows = silences(&self.scene.seen().await, from, now());
        let outcome = match (done, flows) {
            (Ok(detail), Ok(longest)) => Ok(format!("{detail}, {longest}")),
            (Err(error), _) => Err(format!("{error:#}")),
            (Ok(_), Err(flows)) => Err(flows),
        };
        self.checks.check(format_args!("{}: `{task}` ends", process.name()), outcome);
    }
}

/// Ends one task, makes a pod meanwhile, starts the process again, and lets the pod answer.
fn end(bed: &Bed, process: &Process<'_>, task: &str) -> Result<String> {
    let how = process.end(task)?;
    // Names of tasks may have capitals, those of pods may not (RFC 1123).
    let name = format!("during-{}", task.to_lowercase());
    let object = pod::with_image(bed, pod::manifest(NAMESPACE, &name, Some(NODE)))?;
    let made = bed.create(&object.to_string());
    let back = process.start_again()?;
    made.with_context(|| format!("pod {name}"))?;
    answers(bed, &name)?;
    bed.delete::<Pod>(NAMESPACE, &name)?;
    Ok(format!("{how}, ready again after {:.1} s", back.as_secs_f64()))
}

/// Waits until a pod runs, and lets it answer.
fn answers(bed: &Bed, name: &str) -> Result<()> {
    let ip = exec::retry(Duration::from_secs(30), "the pod made meanwhile runs", || {
        bed.running_pod(NAMESPACE, name)?
            .first()
            .copied()
            .with_context(|| format!("pod {name} has no address"))
    })?;
    let expect = Expect::OneOf(vec![format!("{name} {}", host_address(ip))]);
    let ask = Dial::tcp(ip, 8080).to_pod(bed);
    let (_, verdict) =
        expect::settle(bed, &Place::Host(NODE.to_owned()), ask, &expect, Duration::from_secs(20));
    verdict.map(drop).map_err(anyhow::Error::msg)
}

/// The node's own address in the range of a pod of it: that of its management port.
fn host_address(pod: std::net::IpAddr) -> String {
    match pod {
        std::net::IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            format!("{a}.{b}.{c}.2")
        }
        std::net::IpAddr::V6(ip) => ip.to_string(),
    }
}

/// Whether all flows went on between two moments; the longest silence.
fn silences(flows: &[Seen], from: u64, to: u64) -> Result<String, String> {
    let limit = u64::try_from(exec::patient(SILENCE).as_nanos()).unwrap_or(u64::MAX);
    let (mut longest, mut lost) = (0, 0);
    for seen in flows {
        let silence = seen.longest_silence(from, to);
        longest = longest.max(silence);
        if silence > limit {
            return Err(format!("{} was silent for {} ms", seen.name, silence / 1_000_000));
        }
        if seen.udp {
            lost = lost.max(seen.lost());
        }
        if lost > LOST {
            return Err(format!("{}: {lost} messages lost", seen.name));
        }
    }
    Ok(format!("flows silent for {} ms at most, {lost} messages of one lost", longest / 1_000_000))
}

/// The state once it does not change any more.
fn quiet(bed: &Bed) -> Result<Snapshot> {
    exec::retry(REST, "the cluster comes to rest", || {
        let first = Snapshot::take(bed)?;
        std::thread::sleep(Duration::from_secs(1));
        first.equals(&Snapshot::take(bed)?)?;
        Ok(first)
    })
}

fn said(outcome: Result<String>) -> Result<String, String> {
    outcome.map_err(|error| format!("{error:#}"))
}
