//! The directory of CNI configurations: names of Slipstream's files, and which file the container runtime reads.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Name of the plugin executable, and `type` in the configuration.
pub const EXECUTABLE: &str = "slipstream-cni";
/// Name of the configuration file. Container runtimes use the first file by name.
pub const CONF: &str = "10-slipstream.conf";
/// Name of the network in the configuration.
pub const NETWORK: &str = "slipstream";

/// The configuration that the runtime reads, if there is one.
///
/// # Errors
/// The directory cannot be read.
pub fn first_configuration(directory: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut first: Option<PathBuf> = None;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let is_first = || first.as_ref().is_none_or(|first| path < *first);
        if is_configuration(&entry.file_name()) && is_first() && !entry.file_type()?.is_dir() {
            first = Some(path);
        }
    }
    Ok(first)
}

/// Whether runtimes read a file as CNI configuration (extensions of libcni).
pub fn is_configuration(name: &OsStr) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| ["conf", "conflist", "json"].iter().any(|known| ending == *known))
}
