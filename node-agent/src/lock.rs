//! One agent at a time holds the directories that say what is attached and what was taken over. Two would undo one another's work:
//! the second one's epoch would make valid again what the first has made invalid.
//!
//! The lock is the kernel's (flock(2)) on the directory itself, so that it goes with the process, however that ends, and stays as
//! long as a process is stuck in the kernel.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(200);

/// The directories cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has one.
    #[error("another agent holds {directory} (waited {after:?}); end it first")]
    Held {
        /// The directory.
        directory: PathBuf,
        /// How long we waited.
        after: Duration,
    },
    /// The file system refuses.
    #[error("cannot lock {directory}: {source}")]
    Io {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Directories that nobody else has, until this is dropped.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "an open file is what holds the lock")] Vec<File>);

/// Takes the directories, which are made if they are not there. Waits for one that another agent has, for `patience` in all.
///
/// # Errors
/// Another agent has one for that long, or it cannot be opened.
pub async fn take(directories: &[&Path], patience: Duration) -> Result<Held, LockError> {
    let begin = Instant::now();
    let mut held = Vec::new();
    for &directory in directories {
        let failed = |source| LockError::Io { directory: directory.to_path_buf(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let file = File::open(directory).map_err(failed)?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= patience => {
                    return Err(LockError::Held { directory: directory.to_path_buf(), after: patience });
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(directory = %directory.display(), "another agent holds this; waiting for its end");
                    }
                    sleep(AGAIN).await;
                }
            }
        }
        held.push(file);
    }
    Ok(Held(held))
}

/// Takes the locks of this node's agent: the state directory, and the directory of pins where it exists or `programs` are to be
/// pinned there.
///
/// # Errors
/// Another agent still holds one of them after `patience`.
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
        // By another name of the same directory, and with another one beside it.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&pins, &link).unwrap();
        let own = dir.path().join("own");
        let refused = take(&[&own, &link], Duration::from_millis(300)).await.unwrap_err();
        assert!(refused.to_string().contains("link (waited 300ms)"), "{refused}");
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
