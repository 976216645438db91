//! `cargo xtask test`: every test there is, in parts with headings, and at the end one line that counts them.

mod beside;
mod cargo;
mod cluster;
mod real;
pub(crate) mod tally;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{build_ebpf, demo, exec, lint, setup, vm_test};
use beside::Beside;
use cargo::Selection;
use tally::Tally;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these parts (lint, unit, ebpf, ovsdb, controller, agent, doc, cluster, real, alone, vm); the default is all of them.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Everything is installed and built.
    #[arg(long, hide = true)]
    built: bool,
}

/// A part of the whole run.
struct Part {
    key: &'static str,
    title: &'static str,
    run: fn(&mut Tally) -> Result<()>,
}

/// The part that waits for kubelets most of the time runs beside the one that waits for small clusters.
const BESIDE: (&str, &str) = ("real", "cluster");

const PARTS: &[Part] = &[
    Part { key: "lint", title: "lint", run: lint_part },
    Part { key: "unit", title: "unit tests", run: |t| cargo::run(t, Selection::Unit) },
    Part {
        key: "ebpf",
        title: "eBPF: host tests and PROG_RUN tests",
        run: |t| cargo::run(t, Selection::Ebpf),
    },
    Part { key: "ovsdb", title: "OVSDB client", run: |t| cargo::run(t, Selection::Package("ovsdb-client")) },
    Part {
        key: "controller",
        title: "controller against a real NB",
        run: |t| cargo::run(t, Selection::Package("controller")),
    },
    Part {
        key: "agent",
        title: "node agent and CNI",
        run: |t| cargo::run(t, Selection::Package("node-agent")),
    },
    Part { key: "doc", title: "documentation examples", run: |t| cargo::run_doc_tests(t) },
    Part { key: "cluster", title: "whole clusters", run: cluster::run },
    Part { key: "real", title: "real nodes", run: real::run },
    Part {
        key: "alone",
        title: "whole clusters that need the machine to themselves",
        run: cluster::run_alone,
    },
    Part { key: "vm", title: "the kernel's datapath in a virtual machine", run: vm_test::part },
];

/// Runs the parts one after another; a failed part does not stop the next.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(unknown) = args.only.iter().find(|o| PARTS.iter().all(|p| p.key != *o)) {
        let known: Vec<_> = PARTS.iter().map(|p| p.key).collect();
        bail!("there is no part {unknown}; parts are {}", known.join(", "));
    }
    let mut tally = Tally::default();
    let begin = Instant::now();
    if !args.built {
        exec::heading("setup");
        tally.step("setup", setup::ensure());
        exec::heading("build");
        tally.step("eBPF programs build", build_ebpf::run());
        tally.step("programs build", demo::build());
    }
    let is_chosen = |key: &str| args.only.is_empty() || args.only.iter().any(|o| o == key);
    let mut beside = None;
    for part in PARTS.iter().filter(|part| is_chosen(part.key)) {
        if part.key == BESIDE.1 && is_chosen(BESIDE.0) {
            beside = Some(Beside::start(BESIDE.0)?);
        }
        exec::heading(part.title);
        if part.key == BESIDE.0
            && let Some(beside) = beside.take()
        {
            beside.finish(part.title, &mut tally);
            continue;
        }
        let since = Instant::now();
        if let Err(error) = (part.run)(&mut tally) {
            tally.fail(format!("{}: {error:#}", part.title));
        }
        exec::say(format_args!("--- {} took {:.0?}", part.title, since.elapsed()));
    }
    exec::heading("result");
    tally.report();
    exec::say(format_args!("took {:.0?}", begin.elapsed()));
    let closing = tally.closing_line();
    exec::say(if args.built { format!("{} {closing}", beside::CLOSING) } else { closing });
    if tally.is_good() { Ok(()) } else { std::process::exit(1) }
}

fn lint_part(tally: &mut Tally) -> Result<()> {
    let failed = lint::failures();
    for check in lint::CHECKS {
        if failed.contains(check) {
            tally.fail(format!("lint: {check}"));
        } else {
            tally.pass(1);
        }
    }
    Ok(())
}
