//! Unix sockets that only root can access.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use tokio::net::UnixListener;

/// Listens on a unix socket with mode 0600 in a directory with mode 0700, replacing a leftover socket.
///
/// # Errors
/// The directory or the socket cannot be created.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    let directory = socket.parent().ok_or_else(|| io::Error::other("socket path has no directory"))?;
    if !directory.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let mut new = socket.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&new, socket)?;
    Ok(listener)
}
