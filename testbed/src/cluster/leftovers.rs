//! What a cluster may have left on the machine: nothing, after `down`.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::config::Config;
use crate::host::MARK;
use crate::host::identity::Identity;
use crate::nodes::real;

/// Everything of a cluster that is still there: processes, mounts, control groups, settings and files.
pub fn find(config: &Config) -> Result<Vec<String>> {
    let mut left = processes(&config.dir)?;
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let dir = config.dir.to_string_lossy();
    left.extend(mounts.lines().filter(|l| l.contains(dir.as_ref())).map(|l| format!("mount {l}")));
    left.extend(real::leftovers(config));
    if config.dir.exists() {
        left.push(format!("directory {}", config.dir.display()));
    }
    Ok(left)
}

/// Interfaces of the machine's own network namespace, to compare before and after.
pub fn interfaces() -> Result<Vec<String>> {
    let mut names: Vec<_> = fs::read_dir("/sys/class/net")
        .context("/sys/class/net")?
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// The processes that carry the mark of the cluster in `dir`.
pub fn processes(dir: &Path) -> Result<Vec<String>> {
    Ok(marked(dir)?
        .into_iter()
        .map(|process| {
            let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
            format!("process {} {}", process.pid, name.trim())
        })
        .collect())
}

/// Kills the processes that carry the mark of the cluster in `dir`.
pub fn end_marked(dir: &Path) -> Result<()> {
    marked(dir)?.iter().try_for_each(Identity::kill)
}

fn marked(dir: &Path) -> Result<Vec<Identity>> {
    let mark = [MARK.as_bytes(), b"=", dir.as_os_str().as_bytes()].concat();
    let own = i32::try_from(std::process::id())?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        // Gone meanwhile, or not ours to read.
        let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
        if pid != own && environment.split(|&b| b == 0).any(|v| v == mark) {
            found.extend(Identity::of(pid).ok());
        }
    }
    Ok(found)
}
