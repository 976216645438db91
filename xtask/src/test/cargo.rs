//! The tests that cargo knows. They are built once, all together; then each part runs its own programs, as
//! `cargo test` would. (Building package by package would compile shared dependencies several times.)

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::tally::Tally;
use crate::{exec, paths};

/// Which test programs a part runs.
#[derive(Clone, Copy)]
pub(super) enum Selection {
    /// Unit tests inside the sources of packages that no other part runs.
    Unit,
    /// The eBPF package, and the tests of the node agent that run programs in the kernel.
    Ebpf,
    /// Those of the test bed that bring up real nodes.
    Real,
    /// All other test programs of one package.
    Package(&'static str),
}

const OWN_PART: &[&str] = &["ebpf", "ovsdb-client", "controller", "node-agent"];

#[derive(Clone, Debug)]
struct TestProgram {
    package: String,
    directory: PathBuf,
    /// The target's name: a test file's, or the crate's.
    target: String,
    executable: PathBuf,
}

impl Selection {
    fn takes(self, program: &TestProgram) -> bool {
        let kernel = program.package == "node-agent" && program.target.contains("bpf");
        let real = program.package == "testbed" && program.target.starts_with("real");
        match self {
            Self::Unit => !OWN_PART.contains(&program.package.as_str()) && !real,
            Self::Real => real,
            Self::Ebpf => program.package == "ebpf" || kernel,
            Self::Package(package) => program.package == package && !kernel,
        }
    }
}

/// Runs the selected programs and counts their tests.
pub(super) fn run(tally: &mut Tally, selection: Selection) -> Result<()> {
    static PROGRAMS: OnceLock<Vec<TestProgram>> = OnceLock::new();
    let programs = match PROGRAMS.get() {
        Some(programs) => programs,
        None => {
            let built = build()?;
            PROGRAMS.get_or_init(|| built)
        }
    };
    let selected: Vec<_> = programs.iter().filter(|p| selection.takes(p)).collect();
    if selected.is_empty() {
        bail!("no test program belongs to this part");
    }
    for program in selected {
        let name = format!("{} {}", program.package, program.target);
        exec::say(format_args!("running {name}"));
        let (output, good) = stream(
            exec::command(&program.executable)
                .current_dir(&program.directory)
                .env("CARGO_MANIFEST_DIR", &program.directory)
                .env("RUST_BACKTRACE", "1")
                .env("PATH", path_with_cache()?),
        )?;
        let before = tally.failures();
        if !tally.read(&name, &output) {
            tally.fail(format!("{name}: ended without a summary"));
        } else if !good && tally.failures() == before {
            tally.fail(format!("{name}: ended badly"));
        }
    }
    Ok(())
}

/// Runs the examples in documentation comments.
pub(super) fn run_doc_tests(tally: &mut Tally) -> Result<()> {
    let (output, good) =
        stream(exec::cargo().args(["test", "--workspace", "--doc"]).env("PATH", path_with_cache()?))?;
    let before = tally.failures();
    tally.read("documentation examples", &output);
    if !good && tally.failures() == before {
        tally.fail("documentation examples: cargo test --doc failed");
    }
    Ok(())
}

/// The cache's OVS and Kubernetes programs come first.
fn path_with_cache() -> Result<std::ffi::OsString> {
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
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test programs of the workspace.
fn build() -> Result<Vec<TestProgram>> {
    exec::say("building the test programs");
    let mut command = exec::cargo();
    command.args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"]);
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
    Some(TestProgram { package, directory, target: message.target?.name, executable: message.executable? })
}

/// Runs a program, passing on what it writes while keeping its standard output.
pub(super) fn stream(command: &mut Command) -> Result<(String, bool)> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let pipe = child.stdout.take().context("no pipe")?;
    let mut kept = String::new();
    for line in BufReader::new(pipe).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let _ = writeln!(std::io::stdout().lock(), "{line}");
        kept.push_str(&line);
        kept.push('\n');
    }
    Ok((kept, child.wait()?.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(package: &str, target: &str) -> TestProgram {
        TestProgram {
            package: package.into(),
            directory: "".into(),
            target: target.into(),
            executable: "".into(),
        }
    }

    #[test]
    fn every_test_program_belongs_to_exactly_one_part() {
        let parts = [
            Selection::Unit,
            Selection::Ebpf,
            Selection::Real,
            Selection::Package("ovsdb-client"),
            Selection::Package("controller"),
            Selection::Package("node-agent"),
        ];
        for p in [
            program("api", "api"),
            program("testbed", "testbed"),
            program("testbed", "real"),
            program("testbed", "real_life"),
            program("xtask", "xtask"),
            program("perf-tests", "perf_tests"),
            program("fuzz", "seeds"),
            program("ebpf", "ebpf"),
            program("ovsdb-client", "server"),
            program("controller", "nb"),
            program("node-agent", "node_agent"),
            program("node-agent", "bpf_programs"),
        ] {
            assert_eq!(parts.iter().filter(|s| s.takes(&p)).count(), 1, "{} {}", p.package, p.target);
        }
    }
}
