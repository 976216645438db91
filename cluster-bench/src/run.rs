//! `run`: deploys, measures, collects, and removes, whatever happens meanwhile.

use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use k8s_openapi::jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use traffic::statistics::Verdict;
use traffic::{GoalOf, Test};

use crate::api::Cluster;
use crate::document::{Document, FILE, FORMAT, KIND, Method, NotMeasured, PAGE, REPORT};
use crate::drive::{self, Watched};
use crate::objects::{self, Shape};
use crate::options::{Family, RunArgs, Where};
use crate::paths::{Client, Path, Server};
use crate::place::{self, Owns, Placed, Wanted};
use crate::plan::{self, Amount, Lane};
use crate::rows::Collected;
use crate::say::Progress;
use crate::{clean, facts, html, report, scenario};

/// Tests of which each path can have slices.
const SLICED: &[Test] = &[Test::TcpRr, Test::TcpCrr, Test::TcpStream, Test::UdpRr, Test::UdpRate];
/// What pods may take longer than planned until the kubelet ends them.
const SPARE: Duration = Duration::from_secs(900);
/// A request that was under way when a run was interrupted may be carried out after everything was removed.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    let args = scenario::applied(args)?;
    check(&args)?;
    let out = Out::new(args.out.as_deref())?;
    let owns = Owns::default();
    clean_on_panic(args.place.clone(), owns.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let document = runtime.block_on(measured(&args, &owns))?;
    out.write(&document)?;
    std::io::stdout().write_all(report::table(&document).as_bytes()).context("standard output")?;
    Ok(Verdict::exit_code(&document.verdicts().collect::<Vec<_>>()))
}

/// What is wrong with a command line that can be read.
pub(crate) fn check(args: &RunArgs) -> Result<()> {
    for test in &args.tests {
        let names = || SLICED.iter().map(|test| test.name()).collect::<Vec<_>>().join(", ");
        ensure!(SLICED.contains(test), "--tests {}: must be of {}", test.name(), names());
    }
    let known = |name: &str| Path::from_str(name.strip_suffix("-6").unwrap_or(name), false);
    for GoalOf { path, against, .. } in &args.goal {
        for name in [path, against] {
            let Ok(path) = known(name) else { bail!("--goal: there is no path {name}") };
            ensure!(args.paths.is_empty() || args.paths.contains(&path), "--goal: {name} is not in --paths");
        }
    }
    ensure!(!args.image.trim().is_empty(), "--image: must be a reference of an image");
    Ok(())
}

/// Runs until the end or a signal, and then removes everything.
async fn measured(args: &RunArgs, owns: &Owns) -> Result<Document> {
    let mut signals = Signals::new()?;
    let cluster = Cluster::open(&args.place).await?;
    let mut progress = Progress::new(Duration::ZERO);
    let (done, interrupted) = tokio::select! {
        done = work(&cluster, args, &mut progress, owns) => (done, false),
        name = signals.next() => (Err(anyhow::anyhow!("interrupted by {name}")), true),
    };
    progress.end();
    if !owns.get() {
        return done;
    }
    progress.say("removing what was made");
    let removing = async {
        clean::all(&cluster).await?;
        if interrupted {
            tokio::time::sleep(AGAIN).await;
            clean::all(&cluster).await?;
        }
        anyhow::Ok(())
    };
    let how = format!("`clean --namespace {}` removes what is left", cluster.namespace);
    let removed = tokio::select! {
        removed = removing => removed,
        name = signals.next() => Err(anyhow::anyhow!("interrupted again by {name}")),
    };
    match (done, removed) {
        (done, Ok(())) => done,
        (Ok(document), Err(error)) => {
            progress.say(&format!("not everything could be removed: {error:#}; {how}"));
            Ok(document)
        }
        (Err(first), Err(error)) => bail!("{first:#}; not everything could be removed: {error:#}; {how}"),
    }
}

/// The run itself.
async fn work(cluster: &Cluster, args: &RunArgs, progress: &mut Progress, owns: &Owns) -> Result<Document> {
    let begun = SystemTime::now();
    let mut facts = facts::read(cluster, &args.nodes).await?;
    let amount = Amount::of(args);
    let mut not_measured = Vec::new();
    let asked = if args.paths.is_empty() { Path::value_variants().to_vec() } else { args.paths.clone() };
    let others = facts.passed_over.join("; ");
    let only_one = format!(
        "there is only one node that takes pods{}{others}",
        if others.is_empty() { "" } else { "; " }
    );
    let mut paths = leave_out(asked, &mut not_measured, |path| {
        let one = facts.measured.len() < 2 && path.needs_two_nodes();
        one.then(|| only_one.clone())
    });
    ensure!(!paths.is_empty(), "nothing can be measured: {only_one}");
    let nodes: Vec<String> = facts.measured.iter().map(|node| node.name.clone()).collect();
    let [own, other] = [&nodes[0], nodes.last().unwrap_or(&nodes[0])];
    progress.say(&format!(
        "nodes {}, plugin {}, Kubernetes {}",
        nodes.join(" and "),
        facts.plugin,
        facts.kubernetes
    ));

    place::namespace(cluster, paths.iter().any(|path| path.needs_host()), owns).await?;
    let two_families = 2;
    let all = amount.client(&args.tests, two_families * paths.len()) * amount.passes;
    let deadline = i64::try_from((all * 2 + SPARE).as_secs())?;
    let shape = Shape { node: own, image: &args.image, deadline };
    if paths.iter().any(|path| path.needs_host())
        && let Some(reason) = place::host_is_refused(cluster, shape).await?
    {
        paths = leave_out(paths, &mut not_measured, |path| path.needs_host().then(|| reason.clone()));
    }
    let wanted = Wanted {
        paths: &paths,
        nodes: [own, other],
        image: &args.image,
        deadline,
        host_port: args.host_port,
        ready: Duration::from_secs(args.ready_seconds),
    };
    let Placed { addresses, no_host } = place::place(cluster, &wanted, progress).await?;
    if let Some(reason) = no_host {
        progress.say(&format!("left out: paths to the other node: {reason}"));
        paths = leave_out(paths, &mut not_measured, |path| {
            (path.server() == Server::OtherHost).then(|| reason.clone())
        });
    }
    let (lanes, without) = plan::lanes(&paths, args.family.unwrap_or(Family::Both), &addresses);
    not_measured.extend(without);
    ensure!(!lanes.is_empty(), "nothing can be measured: {}", reasons(&not_measured));
    let servers: Vec<String> = addresses.servers.keys().map(|server| server.name().to_owned()).collect();
    let results =
        passes(cluster, args, amount, &lanes, &Around { servers, nodes: &nodes, shape }, progress).await?;
    facts.client = results.first().map(|result| result.client.clone());
    let (rows, missing) = Collected::of(results)?.rows(&lanes, &args.goal);
    not_measured.extend(missing);
    Ok(Document {
        kind: KIND.to_owned(),
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        begun: begun.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        seconds: begun.elapsed().unwrap_or_default().as_secs(),
        cluster: facts,
        method: Method {
            image: args.image.clone(),
            passes: amount.passes,
            rounds: amount.rounds,
            slice_ms: u64::try_from(amount.slice.as_millis())?,
        },
        rows,
        not_measured,
    })
}

/// What is around the clients.
struct Around<'a> {
    servers: Vec<String>,
    nodes: &'a [String],
    shape: Shape<'a>,
}

/// All passes of all clients, one after another, so that none disturbs another.
async fn passes(
    cluster: &Cluster,
    args: &RunArgs,
    amount: Amount,
    lanes: &[Lane],
    around: &Around<'_>,
    progress: &mut Progress,
) -> Result<Vec<traffic::report::Document>> {
    let count = |client: Client| lanes.iter().filter(|lane| lane.path.client() == client).count();
    let clients: Vec<_> =
        [Client::Pod, Client::Host].into_iter().filter(|client| count(*client) > 0).collect();
    let planned = |client: Client| amount.client(&args.tests, count(client));
    let mut after: Duration = clients.iter().map(|client| planned(*client)).sum::<Duration>() * amount.passes;
    let mut results = Vec::new();
    for pass in 1..=amount.passes {
        for &client in &clients {
            after = after.saturating_sub(planned(client));
            let words = plan::arguments(client, lanes, &args.tests, amount);
            let pod = objects::client(client, pass, &words, around.shape)?;
            let from = if client == Client::Pod { "from a pod" } else { "from the node" };
            let watched = Watched {
                servers: &around.servers,
                nodes: around.nodes,
                ready: Duration::from_secs(args.ready_seconds),
                planned: planned(client),
                after,
                title: format!("pass {pass}/{} {from}:", amount.passes),
            };
            results.extend(drive::run(cluster, &pod, &watched, progress).await?);
        }
    }
    Ok(results)
}

/// Takes away the paths for which there is a reason, and notes it.
fn leave_out(
    paths: Vec<Path>,
    not_measured: &mut Vec<NotMeasured>,
    reason: impl Fn(Path) -> Option<String>,
) -> Vec<Path> {
    let stays = |path: &Path| match reason(*path) {
        None => true,
        Some(reason) => {
            not_measured.push(NotMeasured { path: path.name(), test: None, reason });
            false
        }
    };
    paths.into_iter().filter(stays).collect()
}

fn reasons(all: &[NotMeasured]) -> String {
    let mut reasons: Vec<_> = all.iter().map(|one| one.reason.as_str()).collect();
    reasons.dedup();
    reasons.join("; ")
}

/// Where results go; made before anything is measured, so that nothing is measured in vain.
struct Out(PathBuf);

impl Out {
    fn new(wanted: Option<&FilePath>) -> Result<Self> {
        let time = || Timestamp::now().strftime("perf-tests-%Y%m%d-%H%M%S").to_string();
        let path = wanted.map_or_else(|| PathBuf::from(time()), FilePath::to_path_buf);
        ensure!(!path.join(FILE).exists(), "--out {}: it has a {FILE} already", path.display());
        std::fs::create_dir_all(&path).with_context(|| format!("--out {}", path.display()))?;
        Ok(Self(path))
    }

    fn write(&self, document: &Document) -> Result<()> {
        let write = |name: &str, text: String| {
            let path = self.0.join(name);
            std::fs::write(&path, text).with_context(|| path.display().to_string())
        };
        write(FILE, serde_json::to_string(document)? + "\n")?;
        write(REPORT, report::markdown(document))?;
        write(PAGE, html::page(document))?;
        // Nobody reads it: no reason to stop.
        let _ =
            writeln!(std::io::stderr(), "results: {0}/{FILE}, {0}/{REPORT}, {0}/{PAGE}", self.0.display());
        Ok(())
    }
}

impl Drop for Out {
    /// Only an empty directory can be removed so: one of a run that has failed.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The signals that end a run.
struct Signals([(Signal, &'static str); 3]);

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind: SignalKind| signal(kind).context("signals");
        Ok(Self([
            (of(SignalKind::interrupt())?, "SIGINT"),
            (of(SignalKind::terminate())?, "SIGTERM"),
            (of(SignalKind::hangup())?, "SIGHUP"),
        ]))
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.0.recv() => interrupt.1,
            _ = terminate.0.recv() => terminate.1,
            _ = hangup.0.recv() => hangup.1,
        }
    }
}

/// A panic ends the process, in release builds at once: everything is removed before that, in a thread and a runtime of its own.
fn clean_on_panic(place: Where, owns: Owns) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if !owns.get() {
            return;
        }
        let place = place.clone();
        let thread = std::thread::Builder::new().name("clean".into()).spawn(move || clean::run(&place));
        // What cannot be removed is said by `clean`, and ends by its deadline.
        let _ = thread.map(|thread| thread.join());
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parsed;

    fn error(line: &str) -> Option<String> {
        check(&parsed(line)).err().map(|error| error.to_string())
    }

    #[test]
    fn what_cannot_be_measured_is_refused_before_anything_is_made() {
        assert_eq!(error(""), None);
        assert_eq!(error("--paths pod-ip,cluster-ip --goal cluster-ip/pod-ip>=0.9"), None);
        assert_eq!(error("--goal cluster-ip-6/pod-ip-6>=0.9"), None);
        assert!(error("--goal cluster-ip/other>=0.9").unwrap().contains("no path other"));
        assert!(error("--paths pod-ip --goal cluster-ip/pod-ip>=0.9").unwrap().contains("not in --paths"));
        assert!(error("--tests storm").unwrap().contains("--tests storm: must be of tcp-rr"));
    }

    #[test]
    fn a_directory_with_a_result_is_not_written_over_and_an_empty_one_goes() {
        let path = std::env::temp_dir().join(format!("cluster-bench-out-{}", std::process::id()));
        drop(Out::new(Some(&path)).unwrap());
        assert!(!path.exists());
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(FILE), "").unwrap();
        assert!(Out::new(Some(&path)).err().unwrap().to_string().contains("already"));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
