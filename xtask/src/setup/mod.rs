//! `cargo xtask setup`: installs everything needed for building, testing and the demonstration, on Debian and Ubuntu.
//!
//! Each step detects whether its work is done, so that a second run does nothing and takes no time. A step builds
//! in a temporary directory and renames it at its end: an interrupted run leaves nothing incomplete. Programs in Go are
//! built at the same time as everything else.

mod apt;
pub(crate) mod debian;
mod go;
pub(crate) mod kernel;
mod linker;
mod ovs;
mod packages;
mod programs;
mod stamp;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change nothing: print what is missing, and fail if something is.
    #[arg(long)]
    check: bool,
}

/// A part of the setup.
trait Step: Sync {
    /// Name for the output.
    fn name(&self) -> String;
    /// What is missing; empty when the step is done.
    fn missing(&self) -> Result<Vec<String>>;
    /// Does the work. Only called when something is missing.
    fn install(&self) -> Result<()>;
    /// Whether it needs root.
    fn needs_root(&self) -> bool {
        false
    }
    /// When it runs.
    fn lane(&self) -> Lane {
        Lane::Main
    }
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Before all others, which need it.
    First,
    /// One after another, followed by the caller's build.
    Main,
    /// One after another, at the same time as the main lane.
    Beside,
}

/// The extent of the setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Building, and clusters with stand-in nodes: no kubelet, container runtime, DNS server or upstream suite.
    Light,
    /// Rendering and checking the chart: Helm alone.
    Chart,
    /// Everything.
    All,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let steps = steps(Scope::All)?;
    if args.check {
        return report(&steps);
    }
    apply(&steps, || Ok(()))?;
    exec::say("setup: everything is in place");
    Ok(())
}

/// Installs what is missing; silent when nothing is.
pub(crate) fn ensure() -> Result<()> {
    apply(&steps(Scope::All)?, || Ok(()))
}

/// Installs what `scope` needs, and runs `build` as soon as its tools are there, at the same time as the remaining steps.
pub(crate) fn ensure_beside(scope: Scope, build: impl FnOnce() -> Result<()>) -> Result<()> {
    apply(&steps(scope)?, build)
}

/// Installs what virtual machines with these kernels need. Only their tests need it.
pub(crate) fn ensure_machines(kernels: &[kernel::Kernel]) -> Result<()> {
    let work = paths::cache()?.join("tmp");
    let mut steps: Vec<Box<dyn Step>> = vec![Box::new(packages::Packages::for_machines())];
    for &kernel in kernels {
        steps.push(Box::new(kernel::Fetch { kernel, dir: kernel.dir()?, work: work.clone() }));
    }
    apply(&steps, || Ok(()))
}

/// Installs the browser that looks at reports. Only a test needs it.
pub(crate) fn ensure_browser() -> Result<()> {
    let steps: Vec<Box<dyn Step>> = vec![Box::new(packages::Packages::for_reports())];
    apply(&steps, || Ok(()))
}

/// Unpacks the packages that the container image is made of, and returns their directory.
pub(crate) fn ensure_image_packages() -> Result<PathBuf> {
    let cache = paths::cache()?;
    let step = debian::ImagePackages { dir: cache.join("image-packages"), work: cache.join("tmp-image") };
    let dir = step.dir.clone();
    let steps: Vec<Box<dyn Step>> = vec![Box::new(step)];
    apply(&steps, || Ok(()))?;
    Ok(dir)
}

fn steps(scope: Scope) -> Result<Vec<Box<dyn Step>>> {
    let cache = paths::cache()?;
    if scope == Scope::Chart {
        return Ok(programs::steps(&cache, scope));
    }
    let mut steps: Vec<Box<dyn Step>> = vec![
        Box::new(packages::Packages::usual()),
        Box::new(linker::BpfLinker),
        Box::new(ovs::Ovs { dir: cache.join("ovs"), work: cache.join("tmp") }),
    ];
    steps.extend(programs::steps(&cache, scope));
    Ok(steps)
}

fn report(steps: &[Box<dyn Step>]) -> Result<()> {
    let mut complete = true;
    for step in steps {
        let missing = step.missing()?;
        if missing.is_empty() {
            exec::say(format_args!("ok       {}", step.name()));
        } else {
            complete = false;
            exec::say(format_args!("missing  {}: {}", step.name(), missing.join(", ")));
        }
    }
    if !complete {
        bail!("not everything is in place; run `cargo xtask setup`");
    }
    Ok(())
}

fn apply(steps: &[Box<dyn Step>], build: impl FnOnce() -> Result<()>) -> Result<()> {
    let lock = CacheLock::take()?;
    let mut missing = Vec::new();
    for step in steps {
        if !step.missing()?.is_empty() {
            if step.needs_root() && !is_root() {
                report(steps)
                    .context("setup needs root for this; run it as root, or install these by hand")?;
            }
            missing.push(step);
        }
    }
    let left = Left(Mutex::new(missing.iter().map(|step| step.name()).collect()));
    let run =
        |lane: Lane| missing.iter().filter(|s| s.lane() == lane).try_for_each(|s| install(s.as_ref(), &left));
    run(Lane::First)?;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| run(Lane::Beside));
        let main = run(Lane::Main).and_then(|()| build());
        let beside = beside.join().unwrap_or_else(|_| bail!("building Go programs panicked"));
        main.and(beside)
    })?;
    drop(lock);
    Ok(())
}

/// Names of the steps that are not done yet.
struct Left(Mutex<Vec<String>>);

impl Left {
    /// Removes a step from the list, and returns text with the remaining ones.
    fn done(&self, name: &str) -> String {
        let Ok(mut left) = self.0.lock() else { return String::new() };
        left.retain(|n| n != name);
        if left.is_empty() { String::new() } else { format!("; left: {}", left.join(", ")) }
    }
}

fn install(step: &dyn Step, left: &Left) -> Result<()> {
    let name = step.name();
    exec::say(format_args!("setup: {name}: {}", step.missing()?.join(", ")));
    let begin = Instant::now();
    step.install().with_context(|| format!("setup of {name}"))?;
    let still = step.missing()?;
    if !still.is_empty() {
        bail!("setup of {name} ended, and yet there is missing: {}", still.join(", "));
    }
    exec::say(format_args!("setup: {name}: done in {:.0?}{}", begin.elapsed(), left.done(&name)));
    Ok(())
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Two setups at once would remove each other's files: the second waits.
struct CacheLock(#[expect(dead_code, reason = "held for its lock")] std::fs::File);

impl CacheLock {
    fn take() -> Result<Self> {
        let path: PathBuf = paths::cache()?;
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let file = std::fs::File::create(path.join("setup.lock")).context("setup.lock in the cache")?;
        file.lock().context("cannot lock setup.lock in the cache")?;
        Ok(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_light_cluster_needs_no_kubelet_runtime_or_suite() {
        let names = |scope| -> Vec<String> { steps(scope).unwrap().iter().map(|step| step.name()).collect() };
        let (light, all) = (names(Scope::Light), names(Scope::All));
        assert!(light.iter().all(|name| all.contains(name)) && light.len() < all.len());
        for heavy in ["kubelet and scheduler", "containerd", "CoreDNS", "the upstream end-to-end suite"] {
            assert!(
                all.iter().any(|name| name == heavy) && !light.iter().any(|name| name == heavy),
                "{heavy}"
            );
        }
    }

    #[test]
    fn what_is_left_is_said_after_each_step() {
        let left = Left(Mutex::new(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(left.done("a"), "; left: b");
        assert_eq!(left.done("b"), "");
    }
}
