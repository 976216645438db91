//! Network namespaces of pods: opening a path, and running a function in the namespace.
//!
//! A function runs on its own thread, which enters the namespace and ends with the function, so that no runtime thread ever leaves
//! the host namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, fstatfs};
use tokio::sync::oneshot;

/// Magic number of the file system behind namespace files (`NSFS_MAGIC`, linux/magic.h).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// A namespace cannot be opened or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// No file at this path.
    #[error("network namespace {path}: no such file")]
    Missing {
        /// The path as given.
        path: PathBuf,
    },
    /// A file, but not a namespace.
    #[error("network namespace {path}: not a network namespace (must be a bind mount of /proc/PID/ns/net)")]
    NotANamespace {
        /// The path as given.
        path: PathBuf,
    },
    /// The namespace of this process: the host's.
    #[error("network namespace {path}: this is the host namespace, not that of a pod")]
    Own {
        /// The path as given.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("network namespace {path}: {operation}: {source}")]
    System {
        /// The path as given.
        path: PathBuf,
        /// Failed operation.
        operation: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

impl NetnsError {
    /// True when the namespace no longer exists, which DEL treats as success.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotANamespace { .. })
    }
}

/// An open network namespace, kept alive by this value.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    /// Opens the namespace of a pod.
    ///
    /// # Errors
    /// The path does not exist, is not a network namespace, or is the host namespace.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let system = |operation, source| NetnsError::System { path: path.to_owned(), operation, source };
        let file = File::open(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                NetnsError::Missing { path: path.to_owned() }
            }
            io::ErrorKind::PermissionDenied if is_of_an_exiting_task(path) => {
                NetnsError::Missing { path: path.to_owned() }
            }
            _ => system("open", e),
        })?;
        let fs = fstatfs(&file).map_err(|e| system("fstatfs", e.into()))?;
        if fs.filesystem_type() != NSFS_MAGIC {
            return Err(NetnsError::NotANamespace { path: path.to_owned() });
        }
        let meta = file.metadata().map_err(|e| system("stat", e))?;
        let own = std::fs::metadata("/proc/thread-self/ns/net")
            .map_err(|e| system("stat of the own namespace", e))?;
        if (meta.dev(), meta.ino()) == (own.dev(), own.ino()) {
            return Err(NetnsError::Own { path: path.to_owned() });
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Path by which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// File descriptor, for netlink requests that name a namespace. Valid as long as this value.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` in the namespace, on a thread named `name` (the kernel shows at most 15 bytes).
    ///
    /// Sockets and threads created by `work` belong to the namespace and must not be leaked by accident.
    ///
    /// # Errors
    /// The thread cannot be started or enter the namespace, or `work` panicked.
    pub async fn run<T, F>(&self, name: &str, work: F) -> Result<T, NetnsError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let system = |operation, source| NetnsError::System { path: self.path.clone(), operation, source };
        let file = self.file.try_clone().map_err(|e| system("dup", e))?;
        let (tx, rx) = oneshot::channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(512 * 1024)
            .spawn(move || {
                let answer = setns(&file, CloneFlags::CLONE_NEWNET).map(|()| work());
                // Fails when the caller was cancelled.
                let _ = tx.send(answer);
            })
            .map_err(|e| system("start of a thread", e))?;
        match rx.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(errno)) => Err(system("setns", errno.into())),
            Err(_closed) => Err(system("wait for the thread in the namespace", io::Error::other("panic"))),
        }
    }
}

/// Flag of a task that exits (`PF_EXITING`, linux/sched.h). It has left its namespaces, and opening them fails with `EACCES`
/// (`__ns_get_path` in fs/nsfs.c) until its parent has waited for it.
const PF_EXITING: u64 = 0x4;

/// Whether this is `/proc/PID/ns/…`, or a thread's, of a task that exits or has exited.
fn is_of_an_exiting_task(path: &Path) -> bool {
    let Some(task) = path.parent().filter(|ns| ns.ends_with("ns")).and_then(Path::parent) else {
        return false;
    };
    match std::fs::read_to_string(task.join("stat")) {
        Ok(stat) => flags(&stat).is_some_and(|flags| flags & PF_EXITING != 0),
        // It was there a moment ago.
        Err(error) => error.kind() == io::ErrorKind::NotFound && path.starts_with("/proc"),
    }
}

/// The flags of a task in its `stat` file: the ninth field, of which the second is a name in parentheses (proc_pid_stat(5)).
fn flags(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_and_a_plain_file_are_gone_and_named() {
        let missing = Netns::open(Path::new("/run/netns/slipstream-no-such")).unwrap_err();
        assert!(missing.is_gone() && missing.to_string().contains("slipstream-no-such"), "{missing}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plain");
        std::fs::write(&file, "").unwrap();
        let plain = Netns::open(&file).unwrap_err();
        assert!(plain.is_gone() && plain.to_string().contains("not a network namespace"), "{plain}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process that has ended")]
    fn the_namespace_of_a_zombie_is_gone() {
        let mut zombie = std::process::Command::new("true").spawn().unwrap();
        let path = PathBuf::from(format!("/proc/{}/ns/net", zombie.id()));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let gone = loop {
            match Netns::open(&path).unwrap_err() {
                // Not yet: it runs in this namespace.
                NetnsError::Own { .. } if std::time::Instant::now() < deadline => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                error => break error,
            }
        };
        zombie.wait().unwrap();
        assert!(gone.is_gone(), "{gone}");
        assert_eq!(flags("7 (a) b) R 1 7 7 0 -1 4194564 0"), Some(4_194_564));
    }

    #[test]
    fn the_own_namespace_is_refused() {
        let own = Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap_err();
        assert!(!own.is_gone() && own.to_string().contains("host namespace"), "{own}");
    }
}
