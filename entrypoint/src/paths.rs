//! Directories that several roles know.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Where the agent keeps the certificate of the node's chassis.
pub(crate) const CHASSIS_TLS: &str = "/var/lib/slipstream/tls";

/// Makes a directory with those above it.
pub(crate) fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|source| Error::File { action: "create", path: dir.to_owned(), source })
}
