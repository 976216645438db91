//! `e2e demo`: a two-node cluster, ordinary objects, and a table that shows what its traffic does.

mod counters;
pub mod echoes;
mod rates;
mod rows;
mod rows_6;
mod rows_host;
mod table;
pub mod ways;
mod workloads;

pub use workloads::Pods;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::harness::Checks;
use testbed::cluster::config::Runtime;
use testbed::cluster::{Bed, Shape, objects};
use testbed::pod;
use testbed::ui::{Progress, say};

/// The other objects, as an operator would write them.
const NAMESPACE: &str = include_str!("../../../deploy/examples/10-namespace.yaml");
const SERVICE: &str = include_str!("../../../deploy/examples/30-service.yaml");
const POLICY: &str = include_str!("../../../deploy/examples/40-networkpolicy.yaml");

/// What to demonstrate on.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// On real nodes, with Deployments: short for `--runtime containerd`.
    #[arg(long)]
    real: bool,
    #[command(flatten)]
    shape: Shape,
}

impl Args {
    /// Runs it on a cluster of that name, which is left if `keep`, with a word about how to look around in it. The exit code says whether
    /// everything holds.
    #[must_use]
    pub fn main(self, name: &str, keep: bool) -> ExitCode {
        match self.run(name, keep) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                say(format_args!("error: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }

    fn run(self, name: &str, keep: bool) -> Result<bool> {
        let Self { real, mut shape } = self;
        if real {
            shape.runtime = Runtime::Containerd;
        }
        let progress = Progress::new();
        let bed = shape.bring_up(name)?;
        let outcome = show(&bed, &progress);
        if keep {
            poke(&bed);
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
            progress.done("taken down, nothing is left");
        }
        outcome
    }
}

/// The table; true if everything holds.
fn show(bed: &Bed, progress: &Progress) -> Result<bool> {
    let mut checks = Checks::default();
    play(bed, progress, &mut checks)?;
    if counters::node_path(bed, "n1")? == "ebpf" {
        rates::show(bed)?;
        say("");
        progress.done("rates measured");
    }
    Ok(checks.finish())
}

/// Creates the objects, tries the traffic, and shows and counts what comes of it.
pub fn play(bed: &Bed, progress: &Progress, checks: &mut Checks) -> Result<()> {
    let (pods, manifest) = workloads::manifest(bed)?;
    for (file, text) in [
        ("10-namespace.yaml", NAMESPACE),
        (pods, &manifest),
        ("30-service.yaml", SERVICE),
        ("40-networkpolicy.yaml", POLICY),
    ] {
        for object in bed.apply(text).context(file)? {
            progress.done(format_args!("{file}: {} applied", objects::title(&object)));
        }
    }
    if bed.config().dual_stack {
        // The service has one family until the other is requested.
        let policy = r#"{"spec":{"ipFamilyPolicy":"PreferDualStack"}}"#;
        progress.done(bed.kubectl(&["patch", "service", "-n", "shop", "web", "-p", policy])?.trim());
    }
    if bed.config().runtime == Runtime::Containerd {
        // Until then there may be no pods to wait for.
        bed.kubectl(&[
            "wait",
            "-n",
            "shop",
            "deployments",
            "--all",
            "--for=condition=Available",
            "--timeout=60s",
        ])
        .context("the Deployments")?;
    }
    pod::wait_ready(bed, "shop", Duration::from_secs(60))?;
    progress.done("pods are Ready");
    let before = counters::tunnels(bed)?;
    let rows = rows::measure(bed, checks)?;
    progress.done("traffic measured");
    say("");
    table::print(&rows);
    say("");
    counters::print(&before, &counters::tunnels(bed)?, bed, checks);
    counters::check_path(bed, checks);
    say("");
    Ok(())
}

fn poke(bed: &Bed) {
    let testbed = bed.config().program("testbed");
    let (testbed, name) = (testbed.display(), &bed.config().name);
    say(format_args!("\nThe cluster {name} goes on running. To look around:"));
    for line in [
        "status",
        "kubectl get pods -A -o wide",
        "exec n1 -- ovs-vsctl show",
        "exec n1 -- ovs-ofctl --names --no-stats dump-flows breth0",
        "exec central -- ovn-nbctl --db=unix:/run/ovn/ovnnb_db.sock show",
        "restart n1 node-agent",
        "down",
    ] {
        say(format_args!("  {testbed} --name {name} {line}"));
    }
}
