//! `cargo xtask lint`: formatting, clippy (also of the eBPF programs), generated files, manifests of the chart, dependencies of packages and
//! rooms, file rules, doc comments and documents.

mod comments;
mod deps;
mod docs;
mod hooks;
mod rooms;
mod tidy;
mod unused;

use anyhow::{Result, bail};

use crate::{build_ebpf, chart, codegen, exec};

/// Runs every check and reports all that failed. `verbs` is the command line of this program.
pub(crate) fn run(verbs: &clap::Command) -> Result<()> {
    let failed = failures(verbs);
    if failed.is_empty() {
        exec::say("lint: clean");
        return Ok(());
    }
    bail!("lint: failed: {}", failed.join(", "));
}

/// The checks by name.
pub(crate) const CHECKS: &[&str] = &[
    "formatting",
    "dependency directions",
    "unused dependencies",
    "rooms",
    "no test hooks in a release",
    "file rules",
    "doc comments",
    "documents",
    "generated files",
    "manifests of the chart",
    "clippy",
    "clippy of the eBPF programs",
];

/// The names of the checks that failed. Each has printed its findings.
pub(crate) fn failures(verbs: &clap::Command) -> Vec<&'static str> {
    let mut failed = Vec::new();
    let documents = || docs::check(verbs);
    let checks: [&dyn Fn() -> Result<()>; 12] = [
        &formatting,
        &deps::check,
        &unused::check,
        &rooms::check,
        &hooks::check,
        &tidy::check,
        &comments::check,
        &documents,
        &generated,
        &chart::check,
        &clippy,
        &build_ebpf::lint,
    ];
    for (name, check) in CHECKS.iter().zip(checks) {
        exec::say(format_args!("lint: {name}"));
        if let Err(error) = check() {
            exec::say(format_args!("{error:#}"));
            failed.push(*name);
        }
    }
    failed
}

fn formatting() -> Result<()> {
    exec::run(exec::cargo().args(["fmt", "--all", "--check"]))
}

fn generated() -> Result<()> {
    codegen::run(true)
}

fn clippy() -> Result<()> {
    exec::run(exec::cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}
