//! The test programs of the workspace. They are built all together: building package by package would compile shared
//! dependencies several times.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{build, exec, paths};

/// One test program.
#[derive(Clone, Debug)]
pub(super) struct TestProgram {
    pub(super) package: String,
    directory: PathBuf,
    /// Name of the target: a test file's, or the crate's.
    pub(super) target: String,
    /// Contains the tests in a library or program, not in a file of `tests/`.
    pub(super) is_unit: bool,
    executable: PathBuf,
}

/// Niceness of what runs beside the virtual machine. Emulation is slow, and the limits in the machine count real time.
const BESIDE_MACHINE: &str = "10";

/// Tells test programs that the programs which they start are built.
const BUILT: &str = "SLIPSTREAM_PROGRAMS_BUILT";

impl TestProgram {
    /// Runs it as `cargo test` would.
    pub(super) fn command(&self) -> Result<Command> {
        self.around(exec::command(&self.executable))
    }

    /// As [`Self::command`], with what the virtual machine leaves of the processors.
    pub(super) fn command_beside_machine(&self) -> Result<Command> {
        let mut command = exec::command("nice");
        command.args(["-n", BESIDE_MACHINE]).arg(&self.executable);
        self.around(command)
    }

    fn around(&self, mut command: Command) -> Result<Command> {
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("RUST_BACKTRACE", "1")
            // Lint, which runs beside it, keeps every other cargo waiting.
            .env(BUILT, "1")
            .env("PATH", path_with_cache()?);
        Ok(command)
    }

    /// The part of the run to which it belongs.
    pub(super) fn part(&self) -> &'static str {
        match (self.package.as_str(), self.target.as_str()) {
            ("ebpf", _) => "ebpf",
            ("node-agent", target) if target.contains("bpf") => "ebpf",
            ("node-agent", _) => "agent",
            ("controller", _) => "controller",
            ("ovsdb-client", _) => "ovsdb",
            ("testbed", target) if target.starts_with("real") => "real",
            ("perf-tests", "scenarios" | "failover" | "scale" | "versions") => "cluster",
            ("testbed" | "e2e" | "entrypoint", _) if !self.is_unit => "cluster",
            _ => "unit",
        }
    }

    /// Needs no OVS, cluster or database.
    pub(super) fn is_quick(&self) -> bool {
        self.is_unit || ["ebpf", "unit"].contains(&self.part())
    }
}

#[cfg(test)]
impl TestProgram {
    /// A test program that does not exist.
    pub(super) fn named(package: &str, target: &str, is_unit: bool) -> Self {
        Self {
            package: package.into(),
            directory: "".into(),
            target: target.into(),
            is_unit,
            executable: "".into(),
        }
    }
}

/// `PATH`, with the OVS and Kubernetes programs of the cache first.
pub(super) fn path_with_cache() -> Result<std::ffi::OsString> {
    let cache = paths::cache()?;
    let mut path = vec![cache.join("ovs/bin"), cache.join("k8s")];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    Ok(std::env::join_paths(path)?)
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test programs of the workspace, or the quick ones.
pub(super) fn build(quick: bool) -> Result<Vec<TestProgram>> {
    exec::say("building the test programs");
    let mut command = exec::cargo();
    command.args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"]);
    // With the features of the programs that tests start: what both are made of is built once.
    command.args(["--features", build::TEST_HOOKS]);
    if quick {
        command.args(["--lib", "--bins", "--test", "bpf*", "--test", "seeds"]);
    }
    let out = command.stderr(Stdio::inherit()).output().context("cannot start cargo test --no-run")?;
    if !out.status.success() {
        bail!("the tests do not build");
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let mut programs: Vec<_> =
        text.lines().filter_map(|l| serde_json::from_str(l).ok()).filter_map(program).collect();
    programs.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    Ok(programs)
}

fn program(message: Message) -> Option<TestProgram> {
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let directory = message.manifest_path?.parent().map(Path::to_path_buf)?;
    let package = directory.file_name()?.to_str()?.to_owned();
    let target = message.target?;
    let is_unit = !target.kind.iter().any(|kind| kind == "test");
    Some(TestProgram { package, directory, target: target.name, is_unit, executable: message.executable? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_belong_to_the_part_of_what_they_need() {
        for (package, target, is_unit, part) in [
            ("api", "api", true, "unit"),
            ("testbed", "testbed", true, "unit"),
            ("e2e", "e2e", true, "unit"),
            ("e2e", "pod_churn", false, "cluster"),
            ("entrypoint", "central", false, "cluster"),
            ("testbed", "bed", false, "cluster"),
            ("testbed", "real", false, "real"),
            ("xtask", "xtask", true, "unit"),
            ("fuzz", "seeds", false, "unit"),
            ("perf-tests", "failover", false, "cluster"),
            ("ebpf", "ebpf", true, "ebpf"),
            ("ovsdb-client", "server", false, "ovsdb"),
            ("controller", "nb", false, "controller"),
            ("node-agent", "node_agent", true, "agent"),
            ("node-agent", "bpf_programs", false, "ebpf"),
        ] {
            assert_eq!(TestProgram::named(package, target, is_unit).part(), part, "{package} {target}");
        }
    }

    #[test]
    fn quick_is_what_needs_neither_databases_nor_clusters() {
        assert!(TestProgram::named("controller", "controller", true).is_quick());
        assert!(TestProgram::named("node-agent", "bpf", false).is_quick());
        assert!(!TestProgram::named("controller", "nb", false).is_quick());
        assert!(!TestProgram::named("e2e", "scale", false).is_quick());
    }
}
