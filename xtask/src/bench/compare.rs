//! `cargo xtask bench compare A B` of two commits: both are built, and `perf-tests versions` runs them alternately. Of two directories it is
//! `perf-tests compare`, which reads what two runs have left.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::pass_on;
use crate::{build, exec, paths, release, setup};

/// The verb.
const COMPARE: &str = "compare";
/// The programs of a cluster, by their names.
const PROGRAMS: [&str; 5] =
    ["slipstream-controller", "slipstream-node-agent", "slipstream-cni", "slipctl", "testbed"];

/// A commit that is compared.
pub(super) struct Commit {
    /// As it was named.
    name: String,
    hash: String,
}

/// The two commits of such a command line, and what follows; none if it compares files, or does something else.
pub(super) fn commits(args: &[String]) -> Result<Option<([Commit; 2], &[String])>> {
    let [verb, before, after, rest @ ..] = args else { return Ok(None) };
    let is_flag = |word: &String| word.starts_with('-');
    if verb != COMPARE || is_flag(before) || is_flag(after) {
        return Ok(None);
    }
    match [before, after].map(|word| Path::new(word).exists()) {
        [true, true] => Ok(None),
        [false, false] => Ok(Some(([commit(before)?, commit(after)?], rest))),
        _ => bail!("compare {before} {after}: must be two directories of runs, or two commits"),
    }
}

fn commit(name: &str) -> Result<Commit> {
    let mut git = exec::command("git");
    git.current_dir(paths::root()).args(["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
    let hash = exec::output(&mut git).with_context(|| {
        format!("compare {name}: neither a directory with a run nor a commit of this clone")
    })?;
    Ok(Commit { name: name.to_owned(), hash: hash.trim().to_owned() })
}

/// Builds both, unless they are there, and compares them.
pub(super) fn run([before, after]: &[Commit; 2], flags: &[String]) -> Result<()> {
    setup::ensure()?;
    build::release(&["perf-tests"])?;
    let (earlier, later) = (programs(before)?, programs(after)?);
    if same(&earlier, &later)? {
        exec::say(
            "all programs of both commits are the same, byte by byte: there is nothing to compare but the machine with itself",
        );
    }
    let mut command = exec::command(paths::target().join("release/perf-tests"));
    command.arg("versions").arg("--before").arg(earlier).arg("--after").arg(later);
    let short = |commit: &Commit| format!("{} ({:.10})", commit.name.replace(',', " "), commit.hash);
    command.args(["--names", &format!("{},{}", short(before), short(after))]);
    pass_on(command.args(flags))
}

/// Directory with the programs of a commit, built in the release profile: those that were built just now if it is checked out, otherwise those of
/// `target/bench/commits`, which are built once.
fn programs(commit: &Commit) -> Result<PathBuf> {
    if is_checked_out(commit)? {
        return Ok(paths::target().join("release"));
    }
    let dir = paths::target().join("bench/commits").join(&commit.hash);
    let bin = dir.join("bin");
    if bin.exists() {
        return Ok(bin);
    }
    exec::say(format_args!("building {}", commit.name));
    release::sources(&commit.hash, &dir)?;
    // Each has its own: cargo takes members of workspaces for the same if their paths below the root are, and would not build the second commit.
    let target = dir.join("target");
    let mut cargo = exec::cargo();
    cargo.current_dir(dir.join("source")).env("CARGO_TARGET_DIR", &target);
    cargo.args(["build", "--release", "--features", build::TEST_HOOKS]);
    for package in build::PROGRAMS {
        cargo.args(["-p", package]);
    }
    exec::run(&mut cargo).with_context(|| format!("commit {}", commit.name))?;
    let made = dir.join("made");
    fs::create_dir_all(&made).with_context(|| format!("cannot create {}", made.display()))?;
    for program in PROGRAMS {
        let from = target.join("release").join(program);
        fs::copy(&from, made.join(program)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))?;
    fs::rename(&made, &bin).with_context(|| format!("cannot rename {}", made.display()))?;
    Ok(bin)
}

/// Whether two directories have the same programs.
fn same(one: &Path, other: &Path) -> Result<bool> {
    let read = |path: PathBuf| fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
    for program in PROGRAMS {
        if read(one.join(program))? != read(other.join(program))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the working tree is this commit, unchanged.
fn is_checked_out(commit: &Commit) -> Result<bool> {
    let git = |args: &[&str]| exec::output(exec::command("git").current_dir(paths::root()).args(args));
    let head = git(&["rev-parse", "HEAD"])?;
    Ok(head.trim() == commit.hash && git(&["status", "--porcelain"])?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &[&str]) -> Result<Option<Vec<String>>> {
        let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let found = commits(&line)?;
        Ok(found.map(|(commits, rest)| {
            commits.into_iter().map(|commit| commit.name).chain(rest.iter().cloned()).collect()
        }))
    }

    #[test]
    fn programs_are_the_same_only_if_all_are() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for program in PROGRAMS {
            fs::write(one.path().join(program), "x").unwrap();
            fs::write(other.path().join(program), "x").unwrap();
        }
        assert!(same(one.path(), other.path()).unwrap());
        fs::write(other.path().join(PROGRAMS[4]), "y").unwrap();
        assert!(!same(one.path(), other.path()).unwrap());
        fs::remove_file(one.path().join(PROGRAMS[0])).unwrap();
        assert!(
            format!("{:#}", same(one.path(), other.path()).unwrap_err()).contains("slipstream-controller")
        );
    }

    #[test]
    fn commits_are_told_from_directories_and_mistakes_are_named() {
        assert_eq!(told(&["fastpath", "--quick"]).unwrap(), None);
        assert_eq!(told(&["compare", "/", "/tmp", "--within", "3"]).unwrap(), None);
        assert_eq!(told(&["compare", "--help", "x"]).unwrap(), None);
        let found = told(&["compare", "HEAD", "HEAD", "--rounds", "9"]).unwrap();
        assert_eq!(found.unwrap(), ["HEAD", "HEAD", "--rounds", "9"]);
        let error = |line: &[&str]| format!("{:#}", told(line).unwrap_err());
        assert!(error(&["compare", "HEAD", "/tmp"]).contains("two directories of runs, or two commits"));
        assert!(error(&["compare", "HEAD", "no-such"]).contains("compare no-such: neither a directory"));
    }
}
