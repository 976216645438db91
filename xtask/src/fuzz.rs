//! `cargo xtask fuzz`: libFuzzer on the targets of the package `fuzz`, each from its committed seeds.
//!
//! It needs only cargo and the compiler's own coverage instrumentation, with the pinned compiler: no nightly, and
//! no `cargo fuzz`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Targets to run; default: all.
    targets: Vec<String>,
    /// Seconds for which each target runs.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
}

/// Instrumentation that libFuzzer needs: edge counters, their addresses, and the operands of comparisons.
const INSTRUMENTATION: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// An input that takes longer is a finding.
const SLOWEST: Duration = Duration::from_secs(10);
/// An input that needs more memory is a finding; in megabytes.
const MOST_MEMORY: u32 = 1024;
/// Maximum length of generated inputs, in bytes.
const LONGEST: u32 = 4096;

/// Result of one target.
struct Outcome {
    target: String,
    runs: String,
    edges: String,
    /// Files with the inputs that were found.
    found: Vec<PathBuf>,
    good: bool,
}

/// Builds the targets and runs them one after another.
pub(crate) fn run(args: &Args) -> Result<()> {
    let known = targets()?;
    if let Some(unknown) = args.targets.iter().find(|target| !known.contains(target)) {
        bail!("there is no target {unknown}; targets are {}", known.join(", "));
    }
    let chosen = if args.targets.is_empty() { &known } else { &args.targets };
    build(chosen)?;
    let mut outcomes = Vec::new();
    for target in chosen {
        exec::heading(&format!("{target}, {} s", args.seconds));
        outcomes.push(one(target, args.seconds)?);
    }
    exec::heading("result");
    outcomes.iter().for_each(report);
    if outcomes.iter().all(|outcome| outcome.good) { Ok(()) } else { bail!("something was found") }
}

/// The targets by name: each has a directory of seeds.
fn targets() -> Result<Vec<String>> {
    let seeds = paths::root().join("fuzz/seeds");
    let mut names = Vec::new();
    for entry in seeds.read_dir().with_context(|| seeds.display().to_string())? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// A target directory of its own, as everything is compiled with other flags than elsewhere.
fn directory() -> PathBuf {
    paths::target().join("fuzz")
}

/// The machine's own target triple. If it is given explicitly, the flags do not apply to build scripts and macros.
fn host() -> Result<String> {
    let told = exec::output(exec::command("rustc").arg("-vV"))?;
    let host =
        told.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    Ok(host.to_owned())
}

fn build(targets: &[String]) -> Result<()> {
    let mut cargo = exec::cargo();
    cargo.args(["build", "--package=fuzz", "--features=libfuzzer", "--profile=fuzz"]);
    cargo.arg(format!("--target={}", host()?)).arg("--target-dir").arg(directory());
    cargo.args(targets.iter().map(|target| format!("--bin={target}")));
    // None of the flags contains a space. The eBPF programs are not needed here.
    exec::run(cargo.env("RUSTFLAGS", INSTRUMENTATION.join(" ")).env("SLIPSTREAM_SKIP_EBPF", "1"))
}

fn one(target: &str, seconds: u64) -> Result<Outcome> {
    let (corpus, found) = (directory().join("corpus").join(target), directory().join("found").join(target));
    for made in [&corpus, &found] {
        std::fs::create_dir_all(made).with_context(|| made.display().to_string())?;
    }
    let log = found.join("log");
    let before = files(&found)?;
    let mut fuzzer = exec::command(directory().join(host()?).join("fuzz").join(target));
    fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={}", SLOWEST.as_secs()));
    fuzzer.args([format!("-rss_limit_mb={MOST_MEMORY}"), format!("-max_len={LONGEST}")]);
    fuzzer.arg("-print_final_stats=1").arg(format!("-artifact_prefix={}/", found.display()));
    // libFuzzer writes new inputs to the first directory.
    fuzzer.arg(corpus).arg(paths::root().join("fuzz/seeds").join(target));
    let good = written_to(&mut fuzzer, &log)?;
    let text = std::fs::read_to_string(&log).with_context(|| log.display().to_string())?;
    if !good {
        text.lines().filter(|line| !line.starts_with('#')).for_each(exec::say);
    }
    let (runs, edges) = figures(&text);
    let mut found = files(&found)?;
    found.retain(|file| !before.contains(file) && *file != log);
    Ok(Outcome { target: target.to_owned(), runs, edges, found, good })
}

/// Runs the command with its standard error in a file; true when it succeeded.
fn written_to(command: &mut Command, log: &Path) -> Result<bool> {
    let file = std::fs::File::create(log).with_context(|| log.display().to_string())?;
    let shown = format!("{command:?}");
    let status = command.stderr(file).status().with_context(|| format!("cannot start {shown}"))?;
    Ok(status.success())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    directory.read_dir()?.map(|entry| Ok(entry?.path())).collect()
}

/// Runs and edges from libFuzzer's output.
fn figures(log: &str) -> (String, String) {
    let last = |what: &str, line: &str| line.split_once(what)?.1.split_whitespace().next().map(str::to_owned);
    let find = |what: &str| log.lines().rev().find_map(|line| last(what, line));
    let unknown = || "?".to_owned();
    (find("stat::number_of_executed_units:").unwrap_or_else(unknown), find(" cov: ").unwrap_or_else(unknown))
}

fn report(outcome: &Outcome) {
    let Outcome { target, runs, edges, found, good } = outcome;
    let end = if *good { "nothing found" } else { "FOUND" };
    exec::say(format_args!("{target}: {runs} runs, {edges} edges, {end}"));
    for file in found {
        exec::say(format_args!("    {}", file.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_edges_are_read_from_what_libfuzzer_writes() {
        let log = "#11\tINITED cov: 94 ft: 133 corp: 11/1234b exec/s: 0 rss: 27Mb\n\
            #712\tNEW    cov: 130 ft: 248 corp: 80/6900b lim: 4096 exec/s: 8 rss: 27Mb L: 6/9 MS: 1 CopyPart-\n\
            stat::number_of_executed_units: 1050\n";
        assert_eq!(figures(log), ("1050".to_owned(), "130".to_owned()));
        assert_eq!(figures("Killed").0, "?");
    }

    #[test]
    fn each_directory_of_seeds_is_a_target() {
        let known = targets().unwrap();
        assert!(known.iter().any(|name| name == "geneve") && known.len() == 11, "{known:?}");
    }
}
