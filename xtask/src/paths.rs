//! Paths: the workspace, its target directory and the project's cache.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf)
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The project's cache: `$SLIPSTREAM_CACHE`, else `$XDG_CACHE_HOME/slipstream`, else `~/.cache/slipstream`.
pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("SLIPSTREAM_CACHE") {
        return std::path::absolute(PathBuf::from(dir)).context("SLIPSTREAM_CACHE is no path");
    }
    if let Some(dir) = env::var_os("XDG_CACHE_HOME").filter(|d| !d.is_empty()) {
        return Ok(PathBuf::from(dir).join("slipstream"));
    }
    Ok(home()?.join(".cache/slipstream"))
}

/// The user's home directory.
pub(crate) fn home() -> Result<PathBuf> {
    env::var_os("HOME").filter(|h| !h.is_empty()).map(PathBuf::from).context("HOME is not set")
}

/// The first file with this name on `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|d| d.join(program)).find(|p| is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
