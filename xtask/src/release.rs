//! `cargo xtask release`: chart and image of an earlier release, for tests that go from one version to another. They are made once and
//! kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The version, as CHANGELOG.md has it with its commit.
    version: String,
}

const CHANGELOG: &str = "CHANGELOG.md";

/// Makes chart and image of a release, unless they are there.
pub(crate) fn run(args: &Args) -> Result<()> {
    let version = args.version.as_str();
    let text = fs::read_to_string(paths::root().join(CHANGELOG)).context(CHANGELOG)?;
    let commit = commit(&text, version).with_context(|| {
        format!("{CHANGELOG} names no commit of {version}: a line `{version} is commit HASH`")
    })?;
    let dir = paths::cache()?.join("releases").join(commit);
    let archive = dir.join("slipstream.tar");
    if archive.exists() {
        exec::say(format_args!("{version}: {} is there", archive.display()));
        return Ok(());
    }
    sources(commit, &dir)?;
    let target = dir.join("target");
    let made = dir.join("made.tar");
    // It builds with the sources' own version of this program.
    let mut image = exec::cargo();
    image.current_dir(dir.join("source")).env("CARGO_TARGET_DIR", &target);
    image.args(["xtask", "image", "--dev", "--name", &format!("localhost/slipstream:{version}"), "--output"]);
    exec::run(image.arg(&made))?;
    rename(&made, &archive)?;
    fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))?;
    exec::say(format_args!("{version}: {}", archive.display()));
    Ok(())
}

/// Puts the files of a commit below a directory.
pub(crate) fn sources(commit: &str, dir: &Path) -> Result<()> {
    let (source, unpacked) = (dir.join("source"), dir.join("unpacked"));
    if source.exists() {
        return Ok(());
    }
    // What an earlier run has not finished.
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).with_context(|| format!("cannot remove {}", unpacked.display()))?;
    }
    fs::create_dir_all(&unpacked).with_context(|| format!("cannot create {}", unpacked.display()))?;
    let archive: PathBuf = dir.join("source.tar");
    let mut git = exec::command("git");
    git.args(["archive", "--format=tar", "--output"]).arg(&archive).arg(commit);
    if let Err(error) = exec::output(&mut git) {
        bail!("commit {commit} is not in this clone, or this is none (git fetch --unshallow): {error:#}");
    }
    exec::output(exec::command("tar").arg("-xf").arg(&archive).arg("-C").arg(&unpacked))?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    rename(&unpacked, &source)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))
}

/// The commit of a version.
fn commit<'a>(changelog: &'a str, version: &str) -> Option<&'a str> {
    let hash = |line: &'a str| {
        line.strip_prefix(version)?.strip_prefix(" is commit ")?.split([' ', '.', ',', ':']).next()
    };
    let is_hash = |hash: &&str| hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    changelog.lines().find_map(hash).filter(is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelog_names_the_commit_of_a_version() {
        let hash = "552fd82cb059136d74688c7f5df059796428dbac";
        let text = format!("## 0.1.0\n\n0.1.0 is commit {hash}: the first.\n0.2.0 is commit abc.\n");
        assert_eq!(commit(&text, "0.1.0"), Some(hash));
        assert_eq!(commit(&text, "0.2.0"), None, "no whole hash");
        assert_eq!(commit(&text, "0.3.0"), None);
        let ours = fs::read_to_string(paths::root().join(CHANGELOG)).unwrap();
        assert!(commit(&ours, "0.1.0").is_some());
    }
}
