//! `testbed demo`: a two-node cluster, ordinary objects, and a table that shows what its traffic does.

mod counters;
mod rows;
mod table;

use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::bed::config::{AttachMode, Config, Datapath};
use crate::ui::{Checks, Progress, say};
use crate::{exec, pod};

/// The objects, as an operator would write them.
const EXAMPLES: &[(&str, &str)] = &[
    ("10-namespace.yaml", include_str!("../../../deploy/examples/10-namespace.yaml")),
    ("20-pods.yaml", include_str!("../../../deploy/examples/20-pods.yaml")),
    ("30-service.yaml", include_str!("../../../deploy/examples/30-service.yaml")),
    ("40-networkpolicy.yaml", include_str!("../../../deploy/examples/40-networkpolicy.yaml")),
];

/// `testbed demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Leave the cluster running and say how to look around in it.
    #[arg(long)]
    keep: bool,
    /// Name of the cluster.
    #[arg(long, default_value = "demo")]
    name: String,
    /// What the node agents forward with.
    #[arg(long, value_enum, default_value_t)]
    datapath: Datapath,
    /// How the node agents attach their programs.
    #[arg(long, value_enum, default_value_t)]
    attach_mode: AttachMode,
}

impl Args {
    /// Runs it; true if everything holds.
    pub fn run(self) -> Result<bool> {
        let Self { keep, name, datapath, attach_mode } = self;
        let progress = Progress::new();
        if let Ok(old) = Bed::open(&name) {
            say(format_args!("taking down the cluster {name} of an earlier run"));
            old.down()?;
        }
        let bed = Bed::up(Config { datapath, attach_mode, ..Config::new(&name, 2)? })?;
        let outcome = show(&bed, &progress);
        if keep {
            poke(&bed);
        } else {
            if !matches!(outcome, Ok(true)) {
                say(format_args!("logs are kept in {}", bed.keep_logs()?));
            }
            bed.down()?;
            progress.done("taken down, nothing is left");
        }
        outcome
    }
}

fn show(bed: &Bed, progress: &Progress) -> Result<bool> {
    for (file, text) in EXAMPLES {
        let said =
            exec::input_output(bed.kubectl_command()?.args(["apply", "-f", "-"]), text).context(*file)?;
        for line in said.lines() {
            progress.done(format_args!("{file}: {line}"));
        }
    }
    pod::wait_ready(bed, "shop", Duration::from_secs(60))?;
    progress.done("pods are Ready");
    let mut checks = Checks::default();
    let before = counters::tunnels(bed)?;
    let rows = rows::measure(bed, &mut checks)?;
    progress.done("traffic measured");
    say("");
    table::print(&rows);
    say("");
    counters::print(&before, &counters::tunnels(bed)?, bed, &mut checks);
    say("");
    Ok(checks.finish())
}

fn poke(bed: &Bed) {
    let testbed = bed.config().program("testbed");
    let (testbed, name) = (testbed.display(), &bed.config().name);
    say(format_args!("\nThe cluster {name} goes on running. To look around:"));
    for line in [
        "status",
        "kubectl get pods -A -o wide",
        "pod exec shop/client -- probe dial 10.96.0.1 443",
        "exec n1 -- ovs-vsctl show",
        "exec n1 -- ovs-ofctl --names --no-stats dump-flows breth0",
        "exec central -- ovn-nbctl --db=unix:/run/ovn/ovnnb_db.sock show",
        "restart n1 node-agent",
        "down",
    ] {
        // The options of a verb come before what is passed on.
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (verb, rest) = match (verb, rest.split_once(' ')) {
            ("pod", Some((sub, rest))) => (format!("pod {sub}"), rest),
            _ => (verb.to_owned(), rest),
        };
        say(format_args!("  {testbed} {verb} --name {name} {rest}"));
    }
}
