//! Runs programs. The only module of this crate that starts any.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fmt};

use anyhow::{Context, Result, bail};

use crate::paths;

/// A command with the workspace's root as working directory.
#[expect(clippy::disallowed_methods, reason = "xtask exists to run programs")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(paths::root());
    command
}

/// The cargo that runs xtask, or the one on `PATH`. Variables in which the outer cargo describes this package are removed:
/// build scripts of dependencies (ring's) watch them, so builds with and without them would invalidate each other.
pub(crate) fn cargo() -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_about_package) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Whether `cargo run` sets the variable to describe the package that it runs.
fn is_about_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|p| variable.starts_with(p))
}

/// Runs the command to its end with xtask's standard streams; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs the command and returns its standard output; the error contains its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {shown}"))?;
    if !out.status.success() {
        bail!("{shown}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    String::from_utf8(out.stdout).with_context(|| format!("{shown} wrote something that is not UTF-8"))
}

/// Prints a line to standard output; a closed pipe is not an error.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a heading between the parts of a long run.
pub(crate) fn heading(title: &str) {
    say(format_args!("\n=== {title} ==="));
}

/// Sets the variables that every started program needs: a `PATH` with the usual directories of cargo, Go and the
/// system tools, and the cache.
pub(crate) fn prepare_environment() -> Result<()> {
    if env::var_os(PREPARED).is_some() {
        return Ok(());
    }
    let mut path: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let extra =
        [paths::home()?.join(".cargo/bin"), "/usr/local/go/bin".into(), "/usr/sbin".into(), "/sbin".into()];
    for dir in extra {
        if !path.contains(&dir) {
            path.push(dir);
        }
    }
    let me = env::current_exe().context("own executable")?;
    // A process cannot change its own environment safely, so xtask starts itself again.
    let status = command(me)
        .args(env::args_os().skip(1))
        .env("PATH", env::join_paths(path).context("PATH")?)
        .env("SLIPSTREAM_CACHE", paths::cache()?)
        .env(PREPARED, "1")
        .status()
        .context("cannot start xtask again")?;
    std::process::exit(status.code().unwrap_or(1));
}

const PREPARED: &str = "SLIPSTREAM_XTASK_PREPARED";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_user_reach_cargo_and_descriptions_of_this_package_do_not() {
        for name in ["CARGO_PKG_VERSION", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
            assert!(is_about_package(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "CARGO", "PATH"] {
            assert!(!is_about_package(name), "{name}");
        }
    }
}
