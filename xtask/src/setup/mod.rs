//! `cargo xtask setup`: everything that building, testing and the demonstration need, on Debian and Ubuntu.
//!
//! Each step knows when its work is done, so that a second run does nothing and takes no time. A step builds
//! in a temporary directory and renames it at its end: a run that was cut short leaves nothing half made.

mod apt;
mod go;
pub(crate) mod kernel;
mod linker;
mod ovs;
mod packages;
mod programs;
mod stamp;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change nothing: say what is missing, and fail if something is.
    #[arg(long)]
    check: bool,
}

/// One thing to have in place.
trait Step {
    /// What it is, for the reader.
    fn name(&self) -> String;
    /// What is missing; empty when the step is done.
    fn missing(&self) -> Result<Vec<String>>;
    /// Do it. Only called when something is missing.
    fn install(&self) -> Result<()>;
    /// Whether it needs root.
    fn needs_root(&self) -> bool {
        false
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let steps = steps()?;
    if args.check {
        return report(&steps);
    }
    apply(&steps)?;
    exec::say("setup: everything is in place");
    Ok(())
}

/// Puts everything in place; silent when it is.
pub(crate) fn ensure() -> Result<()> {
    apply(&steps()?)
}

/// The same for virtual machines with these kernels, which only their tests need.
pub(crate) fn ensure_machines(kernels: &[kernel::Kernel]) -> Result<()> {
    let work = paths::cache()?.join("tmp");
    let mut steps: Vec<Box<dyn Step>> = vec![Box::new(packages::Packages::for_machines())];
    for &kernel in kernels {
        steps.push(Box::new(kernel::Fetch { kernel, dir: kernel.dir()?, work: work.clone() }));
    }
    apply(&steps)
}

fn steps() -> Result<Vec<Box<dyn Step>>> {
    let cache = paths::cache()?;
    let mut steps: Vec<Box<dyn Step>> = vec![
        Box::new(packages::Packages::usual()),
        Box::new(linker::BpfLinker),
        Box::new(ovs::Ovs { dir: cache.join("ovs"), work: cache.join("tmp") }),
    ];
    steps.extend(programs::steps(&cache));
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

fn apply(steps: &[Box<dyn Step>]) -> Result<()> {
    let lock = CacheLock::take()?;
    for step in steps {
        let missing = step.missing()?;
        if missing.is_empty() {
            continue;
        }
        if step.needs_root() && !is_root() {
            report(steps).context("setup needs root for this; run it as root, or install these by hand")?;
        }
        exec::say(format_args!("setup: {}: {}", step.name(), missing.join(", ")));
        let begin = Instant::now();
        step.install().with_context(|| format!("setup of {}", step.name()))?;
        let left = step.missing()?;
        if !left.is_empty() {
            bail!("setup of {} ended, and yet there is missing: {}", step.name(), left.join(", "));
        }
        exec::say(format_args!("setup: {}: done in {:.0?}", step.name(), begin.elapsed()));
    }
    drop(lock);
    Ok(())
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Two setups at once would take each other's work away: the second waits.
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
