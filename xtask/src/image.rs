//! `cargo xtask image`: the container image as an OCI archive, made without a container engine. The same sources and packages give the
//! same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{demo, exec, paths, setup};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the image with its tag; without one, `localhost/slipstream` and the version.
    #[arg(long)]
    name: Option<String>,
    /// The archive; its bill of materials is put beside it.
    #[arg(long, default_value = ARCHIVE)]
    output: PathBuf,
    /// Programs of the dev profile, with test hooks, as the test bed's clusters have them.
    #[arg(long)]
    dev: bool,
    /// Make it a second time and fail if the bytes differ.
    #[arg(long)]
    check: bool,
}

const ARCHIVE: &str = "target/image/slipstream.tar";
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
    let packages = setup::ensure_image_packages()?;
    build(args.dev)?;
    let work = paths::target().join("image");
    let programs = work.join("programs");
    fs::create_dir_all(&programs).with_context(|| format!("cannot create {}", programs.display()))?;
    for program in PROGRAMS {
        let built = paths::target().join(if args.dev { "debug" } else { "release" }).join(program);
        exec::run(
            exec::command("strip").arg("--strip-debug").arg("-o").arg(programs.join(program)).arg(&built),
        )?;
    }
    let crates = work.join("crates.txt");
    fs::write(&crates, tree()?).with_context(|| format!("cannot write {}", crates.display()))?;
    let output = paths::root().join(&args.output);
    if let Some(directory) = output.parent() {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let make = |output: &Path| -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let name = args.name.clone().unwrap_or_else(|| format!("localhost/slipstream:{version}"));
        let mut make = exec::command(paths::target().join("debug/slipstream-image"));
        make.arg("--packages").arg(&packages).arg("--programs").arg(&programs).arg("--crates").arg(&crates);
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
    Ok(())
}

/// The image of the programs that the test bed's clusters run.
pub(crate) fn for_test_bed() -> Result<()> {
    run(&Args { name: None, output: ARCHIVE.into(), dev: true, check: false })
}

fn build(dev: bool) -> Result<()> {
    exec::say("building");
    if dev {
        demo::build(&["entrypoint"])?;
    } else {
        let mut cargo = exec::cargo();
        cargo.args(["build", "--quiet", "--release", "--locked"]);
        exec::run(cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package])))?;
    }
    let mut plugin = exec::cargo();
    plugin.args(["rustc", "--quiet", "-p", PLUGIN, "--bin", PLUGIN]);
    if !dev {
        plugin.args(["--release", "--locked"]);
    }
    exec::run(plugin.args(["--", "-C", "target-feature=+crt-static"]))?;
    exec::run(exec::cargo().args(["build", "--quiet", "-p", "oci-image"]))
}

/// The crates that the programs are made of, each with its licence.
fn tree() -> Result<String> {
    let mut tree = exec::cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}|{l}"]);
    tree.args(PACKAGES.iter().chain([&PLUGIN]).flat_map(|package| ["-p", package]));
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
        let text = tree().unwrap();
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(&format!("{name} v"))).map(str::to_owned);
        assert!(line("aya").unwrap().ends_with("Apache-2.0"), "{:?}", line("aya"));
        for own in ["controller", "node-agent", "slipstream-cni"] {
            assert!(line(own).is_some(), "{own}");
        }
        assert_eq!(line("proptest"), None, "what only tests use is in no program");
    }
}
