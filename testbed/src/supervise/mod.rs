//! `testbed supervise`: every task and thread of the first node's agent, and of the controller, is ended, one after another.
//! Each time the whole process must end with the name of the part, and come back ready when it is started again, as a cluster
//! does; flows that run go on, pods that are made meanwhile are served, and in the end nothing is lost or left. Then somebody
//! changes what the agent made; and the API server stands still while OVS is started anew: what packets need must come back
//! without it.

mod api_silent;
mod process;
mod told;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::Bed;
use crate::churn::snapshot::Snapshot;
use crate::cli::{Shape, block_on};
use crate::exec;
use crate::laws::scene::{Scene, Seen};
use crate::pod;
use crate::probe::load::now;
use crate::traffic::{self, Dial, Expect, Place};
use crate::ui::{Checks, Progress, say};
use process::Process;

/// Namespace of the pods that are made while a process is away.
const NAMESPACE: &str = "supervise";
/// The node whose agent is ended.
const NODE: &str = "n1";
/// How long a flow may be silent: nothing that carries packets is touched.
const SILENCE: Duration = Duration::from_secs(1);
/// How many messages of a UDP flow may be lost: one is sent every 2 ms, and a busy machine loses some by itself.
const LOST: u64 = 25;
/// How long things may take to come to rest in the end.
const REST: Duration = Duration::from_secs(60);

/// `testbed supervise`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only tasks and threads of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
    /// Use a cluster that runs already, and leave it.
    #[arg(long)]
    there: bool,
    #[command(flatten)]
    shape: Shape,
}

impl Args {
    /// Runs it on a cluster of that name; true if everything ended, came back and lost nothing.
    pub fn run(self, name: &str) -> Result<bool> {
        let bed = if self.there { Bed::open(name)? } else { self.shape.bring_up(name)? };
        let outcome = self.play(&bed);
        if self.keep || self.there {
            say(format_args!("the cluster {name} goes on running"));
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
        }
        outcome
    }

    fn play(&self, bed: &Bed) -> Result<bool> {
        let progress = Progress::new();
        let mut checks = Checks::default();
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        exec::input_output(bed.kubectl_command()?.args(["apply", "-f", "-"]), &namespace.to_string())?;
        bed.enter_network("central")?;
        block_on(async {
            let scene = Scene::new(bed).await?;
            let before = tokio::task::block_in_place(|| quiet(bed))?;
            progress.done("the state to come back to is taken");
            let mut run = Run { bed, checks: &mut checks, scene: &scene, only: &self.only };
            run.all(&Process::agent(bed, NODE)).await?;
            progress.done("the agent's tasks and threads");
            run.all(&Process::controller(bed)).await?;
            progress.done("the controller's tasks and threads");
            if self.only.is_empty() {
                let put_back = tokio::task::block_in_place(|| told::settings(bed, NODE));
                checks.check("settings of ovn-controller that somebody changes are put back", said(put_back));
                let condition = tokio::task::block_in_place(|| told::configuration(bed, NODE));
                checks.check("a CNI configuration before ours is a condition of the node", said(condition));
                let silent = tokio::task::block_in_place(|| api_silent::run(bed, NODE));
                checks.check(
                    "the API server stands still: the bridge's flows come back without it",
                    said(silent),
                );
                progress.done("an API server that does not answer");
            }
            let rest = tokio::task::block_in_place(|| {
                exec::retry(REST, "nothing is lost or left", || before.equals(&Snapshot::take(bed)?))
            });
            checks.check("nothing is lost or left", said(rest.map(|()| String::new())));
            scene.end().await
        })?;
        bed.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
        Ok(checks.finish())
    }
}

struct Run<'r, 'a> {
    bed: &'a Bed,
    checks: &'r mut Checks,
    scene: &'r Scene<'a>,
    only: &'r [String],
}

impl Run<'_, '_> {
    /// Ends every task and thread of a process.
    async fn all(&mut self, process: &Process<'_>) -> Result<()> {
        let Some(tasks) = tokio::task::block_in_place(|| process.tasks())? else {
            say(format_args!("the {} has no tasks that a test may end", process.name()));
            return Ok(());
        };
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
    let name = format!("during-{task}");
    let object = pod::with_image(bed, pod::manifest(NAMESPACE, &name, Some(NODE)))?;
    let made = exec::input_output(bed.kubectl_command()?.args(["create", "-f", "-"]), &object.to_string());
    let back = process.start_again()?;
    made.with_context(|| format!("pod {name}"))?;
    answers(bed, &name)?;
    bed.kubectl(&["delete", "pod", "-n", NAMESPACE, &name, "--wait=false"])?;
    Ok(format!("{how}, ready again after {:.1} s", back.as_secs_f64()))
}

/// Waits until a pod runs, and lets it answer.
fn answers(bed: &Bed, name: &str) -> Result<()> {
    let ip = exec::retry(Duration::from_secs(30), "the pod made meanwhile runs", || {
        let query = "jsonpath={.status.phase} {.status.podIP}";
        let said = bed.kubectl(&["get", "pod", "-n", NAMESPACE, name, "-o", query])?;
        let ip = said.strip_prefix("Running ").with_context(|| format!("pod {name}: {said:?}"))?;
        Ok(ip.parse::<std::net::IpAddr>()?)
    })?;
    let expect = Expect::OneOf(vec![format!("{name} {}", host_address(ip))]);
    let ask = Dial::tcp(ip, 8080).to_pod(bed);
    let (_, verdict) =
        traffic::settle(bed, &Place::Host(NODE.to_owned()), ask, &expect, Duration::from_secs(20));
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
