//! Bind mounts in a host's own mount namespace.

use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

/// Makes a file or directory, by its path, visible at another one too.
pub(super) fn bind_path(source: &Path, target: &Path) -> Result<()> {
    let none: Option<&str> = None;
    mount(Some(source), target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
        .with_context(|| format!("bind to {}", target.display()))
}
