//! `cargo xtask build-ebpf`: compiles the eBPF programs as node-agent's build script does, and lists the contents of the
//! object.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow, bail};

use crate::{exec, paths};

mod elf;
#[allow(dead_code, reason = "shared with node-agent's build script, which alone asks what to watch")]
#[path = "../../../ebpf/build/object.rs"]
mod object;

/// Compiles the eBPF programs for the kernel and prints the contents of the object.
pub(crate) fn run() -> Result<()> {
    let built = object::build(object::OBJECT, &paths::root(), &paths::target().join("ebpf"))
        .map_err(|why| anyhow!("no eBPF object: {why}; `cargo xtask setup` installs what it needs"))?;
    report(&built)
}

/// Runs clippy on the programs as they are compiled for the kernel.
pub(crate) fn lint() -> Result<()> {
    match object::clippy(&paths::root(), &paths::target().join("ebpf-clippy")) {
        Err(why @ object::NoObject::Skipped) => {
            exec::say(format_args!("left out: {why}"));
            Ok(())
        }
        Err(object::NoObject::Failed(text)) => bail!("{text}"),
        Err(why) => bail!("{why}; `cargo xtask setup` installs what is needed"),
        Ok(()) => Ok(()),
    }
}

fn report(path: &Path) -> Result<()> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let contents = elf::contents(&bytes).with_context(|| format!("{} is no eBPF object", path.display()))?;
    exec::say(format_args!("{}: {} bytes", path.display(), bytes.len()));
    for (name, instructions) in &contents.programs {
        exec::say(format_args!("  program {name:<16} {instructions:>6} instructions"));
    }
    exec::say(format_args!("  shared functions {:>13} instructions", contents.shared));
    for map in &contents.maps {
        exec::say(format_args!("  map     {map}"));
    }
    Ok(())
}
