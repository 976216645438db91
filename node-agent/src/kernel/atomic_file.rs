//! Files that are never seen half written.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Replaces a file atomically, also with regard to a crash (write to a temporary file, sync, rename).
///
/// # Errors
/// A file operation failed; the target is as it was.
pub fn write_atomically(target: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = target.parent().ok_or_else(|| io::Error::other("path has no file name"))?;
    std::fs::create_dir_all(directory)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // The extension keeps runtimes from reading the temporary file as a configuration.
    let new = directory.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        std::fs::rename(&new, target)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&new)))
}
