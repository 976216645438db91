//! `cargo xtask conformance`: runs the upstream Kubernetes end-to-end suite on a cluster with real nodes.

mod baseline;
mod cluster;
mod divergence;
mod focus;
mod report;
mod suite;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{build, exec, paths, setup};
use baseline::Baseline;
use cluster::{Cluster, Shape};
use focus::Focus;
pub(crate) use report::Counts;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Specs to run: conformance, netpol, network (all of them), dual-stack, smoke; or the name of a spec; or a regular
    /// expression.
    #[arg(default_value = "conformance")]
    focus: String,
    /// Leave out specs that this regular expression matches, in addition to testbed/conformance/skip.txt.
    #[arg(long)]
    skip: Vec<String>,
    /// Datapath of the node agents: auto, ebpf or ovs.
    #[arg(long, default_value = "auto")]
    datapath: String,
    /// Create a cluster with IPv4 and IPv6.
    #[arg(long)]
    dual_stack: bool,
    /// Create a cluster with IPv6 alone.
    #[arg(long, conflicts_with = "dual_stack")]
    ipv6_only: bool,
    /// Number of nodes; default: 2, or the number that the preset needs.
    #[arg(long)]
    nodes: Option<u8>,
    /// Number of specs that run at the same time.
    #[arg(long, default_value_t = 4)]
    procs: u8,
    /// Name of the cluster to start; one of the same name that an earlier run has left is stopped first.
    #[arg(long, default_value = "conformance")]
    name: String,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
    /// Run on this cluster, which must be running.
    #[arg(long, conflicts_with_all = ["nodes", "dual_stack", "ipv6_only", "datapath", "keep", "without_policy"])]
    cluster: Option<String>,
    /// Files of objects to apply before the specs run, and to wait for: testbed/conformance/networks.yaml has virtual networks and pods on them.
    #[arg(long, value_name = "FILE")]
    apply: Vec<PathBuf>,
    /// Number of times to run the specs on one cluster.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Time limit of a run in minutes; a run that takes longer fails.
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// A control: network policies are not enforced.
    #[arg(long)]
    without_policy: bool,
    /// A control: succeed only if at least this number of specs fails.
    #[arg(long)]
    expect_failures: Option<u64>,
}

/// Sets up, builds, runs, and exits with an error unless all results are as expected.
pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure()?;
    build::programs(&[])?;
    if on_cluster(args)?.is_good() { Ok(()) } else { std::process::exit(1) }
}

/// The specs that continuous integration runs, on a cluster of their own. Everything must have been built before.
pub(crate) fn smoke(datapath: &str) -> Result<Counts> {
    let args = Args {
        focus: "smoke".into(),
        skip: Vec::new(),
        datapath: datapath.into(),
        dual_stack: false,
        ipv6_only: false,
        nodes: None,
        procs: 4,
        name: "smoke".into(),
        keep: false,
        cluster: None,
        apply: Vec::new(),
        repeat: 1,
        limit: 7,
        without_policy: false,
        expect_failures: None,
    };
    let outcome = on_cluster(&args)?;
    let mut counts = outcome.counts;
    // Each of these specs is in the baseline, so one that skipped itself is a failure.
    counts.failed = counts.failed.max(u64::from(!outcome.is_good()));
    Ok(counts)
}

/// Result of all runs.
#[derive(Debug, Default)]
struct Outcome {
    counts: Counts,
    /// Specs of the baseline that did not pass.
    broken: usize,
    /// With a control: whether enough failed, in each run.
    control: Option<bool>,
    /// A node's flow cache decided otherwise than OVS, or a node could not be queried.
    diverged: bool,
    /// The northbound database was not as the controller wants it.
    unverified: bool,
    /// The cluster was not stopped correctly.
    left_behind: bool,
}

impl Outcome {
    fn is_good(&self) -> bool {
        let specs = self.control.unwrap_or(self.counts.is_good() && self.broken == 0);
        specs && !self.diverged && !self.unverified && !self.left_behind
    }
}

fn file(name: &str) -> Result<String> {
    let path = paths::root().join("testbed/conformance").join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn on_cluster(args: &Args) -> Result<Outcome> {
    let focus = Focus::parse(&args.focus, &file("smoke.txt")?)?;
    // A mistake in these files must be found before the cluster is started.
    let (skips, baseline) = (focus::skips(&file("skip.txt")?)?, Baseline::parse(&file("baseline.txt")?)?);
    let shape = Shape {
        nodes: args.nodes.unwrap_or(focus.nodes),
        datapath: args.datapath.clone(),
        dual_stack: args.dual_stack || focus.dual_stack,
        ipv6_only: args.ipv6_only,
        without_policy: args.without_policy,
    };
    let cluster = match &args.cluster {
        Some(name) => Cluster::open(name)?,
        None => Cluster::up(&args.name, &shape)?,
    };
    let mut outcome = runs(args, &focus, &skips, &baseline, &cluster);
    if let Ok(outcome) = &mut outcome {
        outcome.diverged = !divergence::none(&cluster, &args.datapath).unwrap_or_else(|error| {
            exec::say(format_args!("FAILED: the nodes cannot be asked for divergences: {error:#}"));
            false
        });
    }
    if let Ok(outcome) = &mut outcome {
        match cluster.verified() {
            Ok(said) => exec::say(format_args!("NB is as the controller wants it: {}", said.trim())),
            Err(error) => {
                exec::say(format_args!("FAILED: NB at the end: {error:#}"));
                outcome.unverified = true;
            }
        }
    }
    if args.keep {
        exec::say(format_args!(
            "the cluster is kept: target/debug/testbed --name {0} status; it ends with `testbed --name {0} down`",
            cluster.name()
        ));
        return outcome;
    }
    let down = cluster.down();
    let mut outcome = outcome?;
    if let Err(error) = down {
        exec::say(format_args!("FAILED: the cluster was not taken down: {error:#}"));
        outcome.left_behind = true;
    }
    Ok(outcome)
}

fn runs(
    args: &Args,
    focus: &Focus,
    skips: &[focus::Skip],
    baseline: &Baseline,
    cluster: &Cluster,
) -> Result<Outcome> {
    args.apply.iter().try_for_each(|file| cluster.apply(file))?;
    let nodes = cluster.nodes()?;
    let dual_stack = cluster.is_dual_stack()?;
    let mut skip: Vec<String> =
        skips.iter().filter(|s| !(s.single_stack && dual_stack)).map(|s| s.expression.clone()).collect();
    skip.extend(args.skip.iter().cloned());
    let order = suite::Order {
        focus: &focus.expressions,
        skip: &skip,
        processes: args.procs,
        nodes,
        limit: Duration::from_secs(args.limit.saturating_mul(60)),
        explain: args.expect_failures.is_none(),
    };
    let mut all = Outcome::default();
    for _ in 0..args.repeat {
        let directory = fresh_directory(&focus.name)?;
        let (specs, took) = suite::run(cluster, &order, &directory)?;
        let counts = Counts::of(&specs);
        let mut good = counts.is_good();
        if let Some(least) = args.expect_failures {
            good = counts.failed >= least;
            all.control = Some(good && all.control.unwrap_or(true));
            let verdict = if good { "as expected" } else { "NOT as expected" };
            exec::say(format_args!("{verdict}: {} specs failed; at least {least} were to", counts.failed));
        } else {
            let broken = baseline.broken(&specs, nodes, focus.whole_baseline && args.skip.is_empty());
            for (name, what) in &broken {
                exec::say(format_args!("in the baseline, and {what}: {name}"));
            }
            good &= broken.is_empty();
            all.broken += broken.len();
        }
        if !good {
            if let Err(error) = cluster.dump(&directory) {
                exec::say(format_args!("the cluster's logs could not be kept: {error:#}"));
            }
            exec::say(format_args!("logs are in {}", directory.display()));
        }
        // Programs parse this line as well.
        exec::say(format_args!("{counts} in {:.0} s", took.as_secs_f64()));
        all.counts.add(counts);
    }
    Ok(all)
}

/// `target/conformance/NNN-FOCUS`, with the next number; `latest` points to it.
fn fresh_directory(focus: &str) -> Result<PathBuf> {
    let base = paths::target().join("conformance");
    fs::create_dir_all(&base).with_context(|| format!("cannot create {}", base.display()))?;
    let names = fs::read_dir(&base)?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let directory = base.join(format!("{:03}-{focus}", next_number(names)));
    fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    point(&base.join("latest"), &directory)?;
    Ok(directory)
}

fn next_number(names: impl Iterator<Item = String>) -> u32 {
    names.filter_map(|n| n.split('-').next()?.parse::<u32>().ok()).max().unwrap_or(0) + 1
}

fn point(link: &Path, to: &Path) -> Result<()> {
    if link.symlink_metadata().is_ok() {
        fs::remove_file(link).with_context(|| format!("cannot remove {}", link.display()))?;
    }
    std::os::unix::fs::symlink(to, link).with_context(|| format!("cannot write {}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: u64, failed: u64) -> Outcome {
        Outcome { counts: Counts { passed, failed, skipped: 0 }, ..Outcome::default() }
    }

    #[test]
    fn a_run_is_good_unless_something_failed_is_missing_diverged_or_is_left_behind() {
        assert!(outcome(3, 0).is_good());
        assert!(!outcome(3, 1).is_good());
        assert!(!outcome(0, 0).is_good());
        assert!(!Outcome { broken: 1, ..outcome(3, 0) }.is_good());
        assert!(!Outcome { diverged: true, ..outcome(3, 0) }.is_good());
        assert!(!Outcome { left_behind: true, ..outcome(3, 0) }.is_good());
    }

    #[test]
    fn a_control_is_good_only_if_enough_failed() {
        assert!(Outcome { control: Some(true), ..outcome(5, 40) }.is_good());
        assert!(!Outcome { control: Some(false), ..outcome(45, 0) }.is_good());
    }

    #[test]
    fn runs_are_numbered_on() {
        let names = ["001-smoke", "012-netpol", "latest", "x"].map(str::to_owned);
        assert_eq!(next_number(names.into_iter()), 13);
        assert_eq!(next_number(std::iter::empty()), 1);
    }
}
