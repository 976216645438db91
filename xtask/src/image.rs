//! `cargo xtask image`: the container image as an OCI archive, made without a container engine. The same sources and packages give the
//! same bytes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{build, exec, paths, setup};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the image with its tag; without one, `localhost/slipstream` and the version.
    #[arg(long)]
    name: Option<String>,
    /// The archive; its bill of materials is put beside it. Without it, one in `target/image`.
    #[arg(long)]
    output: Option<PathBuf>,
    /// The image of the traffic tool alone, in place of the one of Slipstream.
    #[arg(long, conflicts_with = "dev")]
    traffic: bool,
    /// Programs of the dev profile, with test hooks, as the test bed's clusters have them.
    #[arg(long)]
    dev: bool,
    /// Make it a second time and fail if the bytes differ.
    #[arg(long)]
    check: bool,
}

const ARCHIVE: &str = "target/image/slipstream.tar";
/// The traffic tool: its package, its program and its archive, which may have so many bytes.
const TRAFFIC: &str = "traffic";
const TRAFFIC_PROGRAM: &str = "slipstream-traffic";
const TRAFFIC_ARCHIVE: &str = "target/image/slipstream-traffic.tar";
const TRAFFIC_MOST: u64 = 10_000_000;
/// Packages whose programs are in the image; the plugin executable is built apart.
const PACKAGES: &[&str] = &["controller", "node-agent", "slipctl", "entrypoint"];
/// The executable that the agent puts on the node, whose C library may be an older one: it has its own.
const PLUGIN: &str = "slipstream-cni";
const PROGRAMS: &[&str] =
    &["slipctl", PLUGIN, "slipstream-controller", "slipstream-entrypoint", "slipstream-node-agent"];

/// Builds the programs and makes the image.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("the image is made on Linux, of programs for the same kind of processor");
    }
    if args.traffic {
        return traffic(args);
    }
    let packages = setup::ensure_image_packages()?;
    build_all(args.dev)?;
    let work = paths::target().join("image");
    let programs = work.join("programs");
    fs::create_dir_all(&programs).with_context(|| format!("cannot create {}", programs.display()))?;
    for program in PROGRAMS {
        let built = paths::target().join(if args.dev { "debug" } else { "release" }).join(program);
        strip(&built, &programs.join(program))?;
    }
    let packaged: Vec<_> = PACKAGES.iter().chain([&PLUGIN]).copied().collect();
    let parts = ["--packages".into(), packages.into(), "--programs".into(), programs.into()];
    make(args, &parts, "slipstream", &packaged, ARCHIVE).map(drop)
}

/// The image of the traffic tool.
fn traffic(args: &Args) -> Result<()> {
    exec::say("building");
    build_static(TRAFFIC, TRAFFIC_PROGRAM, true)?;
    exec::run(exec::cargo().args(["build", "--quiet", "-p", "oci-image"]))?;
    let work = paths::target().join("image/static");
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let program = work.join(TRAFFIC_PROGRAM);
    strip(&paths::target().join("release").join(TRAFFIC_PROGRAM), &program)?;
    let description = "Network benchmark between two ends, for any Kubernetes cluster";
    let parts =
        ["--static-program".into(), program.clone().into(), "--description".into(), description.into()];
    let archive = make(args, &parts, TRAFFIC_PROGRAM, &[TRAFFIC], TRAFFIC_ARCHIVE)?;
    let bytes = fs::metadata(&archive)?.len();
    exec::say(format_args!("program: {} bytes, archive: {bytes} bytes", fs::metadata(&program)?.len()));
    if bytes > TRAFFIC_MOST {
        bail!("{}: {bytes} bytes, more than {TRAFFIC_MOST}", archive.display());
    }
    Ok(())
}

fn strip(built: &Path, to: &Path) -> Result<()> {
    exec::run(exec::command("strip").arg("--strip-debug").arg("-o").arg(to).arg(built))
}

/// Writes the archive, twice if that is to be checked. `parts` carries the arguments for what is in the image.
fn make(args: &Args, parts: &[OsString], title: &str, packages: &[&str], archive: &str) -> Result<PathBuf> {
    let work = paths::target().join("image");
    let crates = work.join(format!("{title}-crates.txt"));
    fs::write(&crates, tree(packages)?).with_context(|| format!("cannot write {}", crates.display()))?;
    let output = paths::root().join(args.output.as_deref().unwrap_or(Path::new(archive)));
    if let Some(directory) = output.parent() {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let make = |output: &Path| -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let name = args.name.clone().unwrap_or_else(|| format!("localhost/{title}:{version}"));
        let mut make = exec::command(paths::target().join("debug/slipstream-image"));
        make.args(parts).arg("--crates").arg(&crates);
        make.args(["--name", &name, "--version", version, "--created", &created()]);
        if let Some(revision) = git(&["rev-parse", "HEAD"]) {
            make.args(["--revision", &revision]);
        }
        exec::run(make.arg("--output").arg(output))
    };
    make(&output)?;
    if args.check {
        let second = work.join("second.tar");
        make(&second)?;
        let same = fs::read(&output)? == fs::read(&second)?;
        fs::remove_file(&second)?;
        if !same {
            bail!("two archives of the same input differ");
        }
    }
    exec::say(format_args!("{}: {} MB", output.display(), fs::metadata(&output)?.len() >> 20));
    Ok(output)
}

/// The traffic tool's image, made twice: it must be the same, and small.
pub(crate) fn check_traffic() -> Result<()> {
    run(&Args { name: None, output: None, traffic: true, dev: false, check: true })
}

/// The image of the programs that the test bed's clusters run.
pub(crate) fn for_test_bed() -> Result<()> {
    run(&Args { name: None, output: None, traffic: false, dev: true, check: false })
}

fn build_all(dev: bool) -> Result<()> {
    exec::say("building");
    if dev {
        build::programs(&["entrypoint"])?;
    } else {
        let mut cargo = exec::cargo();
        cargo.args(["build", "--quiet", "--release", "--locked"]);
        exec::run(cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package])))?;
    }
    build_static(PLUGIN, PLUGIN, !dev)?;
    exec::run(exec::cargo().args(["build", "--quiet", "-p", "oci-image"]))
}

/// A program that has its own C library: it runs on nodes and in images that have another one, or none.
fn build_static(package: &str, program: &str, release: bool) -> Result<()> {
    let mut build = exec::cargo();
    build.args(["rustc", "--quiet", "-p", package, "--bin", program]);
    if release {
        build.args(["--release", "--locked"]);
    }
    exec::run(build.args(["--", "-C", "target-feature=+crt-static"]))
}

/// The crates that the programs are made of, each with its licence.
fn tree(packages: &[&str]) -> Result<String> {
    let mut tree = exec::cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}|{l}"]);
    tree.args(packages.iter().flat_map(|package| ["-p", package]));
    let text = exec::output(&mut tree)?;
    // Repeated crates, and an empty line between packages.
    let mut lines: Vec<&str> =
        text.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(lines.join("\n") + "\n")
}

/// The time of the commit, so that the same sources make the same image.
fn created() -> String {
    let form = "--date=format-local:%Y-%m-%dT%H:%M:%SZ";
    git(&["log", "-1", form, "--format=%cd"]).unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

/// What git says, where the sources are a clone.
fn git(args: &[&str]) -> Option<String> {
    let said = exec::output(exec::command("git").env("TZ", "UTC").args(args)).ok()?;
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_of_the_programs_are_listed_with_their_licences() {
        let text = tree(&["controller", "node-agent", "slipctl", "entrypoint", PLUGIN]).unwrap();
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(&format!("{name} v"))).map(str::to_owned);
        assert!(line("aya").unwrap().ends_with("Apache-2.0"), "{:?}", line("aya"));
        for own in ["controller", "node-agent", "slipstream-cni"] {
            assert!(line(own).is_some(), "{own}");
        }
        assert_eq!(line("proptest"), None, "what only tests use is in no program");
    }
}
