//! Instance lock: one agent at a time uses the state and pin directories. Two agents would undo one another's work; epochs written
//! by one could make entries valid that the other has invalidated.
//!
//! The lock is an flock(2) on the directory: the kernel releases it when the process exits for any reason, and keeps it while the
//! process is stuck in the kernel.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Interval of attempts.
const AGAIN: Duration = Duration::from_millis(200);

/// A directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Locked by another agent.
    #[error("{directory} is locked by another agent (waited {after:?}); stop that agent first")]
    Held {
        /// Path of the directory.
        directory: PathBuf,
        /// Time waited.
        after: Duration,
    },
    /// The directory cannot be created, opened or locked.
    #[error("cannot lock {directory}: {source}")]
    Io {
        /// Path of the directory.
        directory: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
}

/// Locked directories; unlocked on drop.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "an open file is what holds the lock")] Vec<File>);

/// Locks `directories`, creating missing ones. Waits up to `patience` in total for other agents to exit.
///
/// # Errors
/// Another agent holds a lock for that long, or a directory cannot be opened.
pub async fn take(directories: &[&Path], patience: Duration) -> Result<Held, LockError> {
    let begin = Instant::now();
    let mut held = Vec::new();
    for &directory in directories {
        let failed = |source| LockError::Io { directory: directory.to_path_buf(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let file = File::open(directory).map_err(failed)?;
        let mut logged = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= patience => {
                    return Err(LockError::Held { directory: directory.to_path_buf(), after: patience });
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut logged, true) {
                        tracing::warn!(directory = %directory.display(), "directory is locked by another agent; waiting for it to exit");
                    }
                    sleep(AGAIN).await;
                }
            }
        }
        held.push(file);
    }
    Ok(Held(held))
}

/// Locks the directories of this node's agent: the state directory, and the pin directory if it exists or `programs` is set.
///
/// # Errors
/// Another agent still holds a lock after `patience`.
pub(crate) async fn hold(
    config: &crate::config::Config,
    programs: bool,
    patience: Duration,
) -> Result<Held, LockError> {
    let mut directories = vec![config.state_dir.as_path()];
    if config.bpf_dir.exists() || (programs && crate::bpf::on_bpffs(&config.bpf_dir)) {
        directories.push(&config.bpf_dir);
    }
    take(&directories, patience).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_agent_waits_for_the_end_of_the_first_and_gives_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let (state, pins) = (dir.path().join("state"), dir.path().join("pins"));
        let first = take(&[&state, &pins], Duration::ZERO).await.unwrap();
        // The same directory through a symbolic link, and another one.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&pins, &link).unwrap();
        let own = dir.path().join("own");
        let refused = take(&[&own, &link], Duration::from_millis(300)).await.unwrap_err();
        assert!(refused.to_string().contains("link is locked by another agent (waited 300ms)"), "{refused}");
        let waiting = tokio::spawn(async move { take(&[&own, &pins], Duration::from_secs(20)).await });
        sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_had_is_named() {
        let refused = take(&[Path::new("/proc/nothing")], Duration::ZERO).await.unwrap_err();
        assert!(refused.to_string().starts_with("cannot lock /proc/nothing"), "{refused}");
    }
}
