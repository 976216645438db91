//! Trial period of an uplink migration, until the API server responds through the bridge: if it responded before the migration but not
//! for a while after it, the migration is undone. A file in the state directory records the trial across restarts of the agent.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::journal::{self, Phase, Store};
use super::role::Role;

/// A trial under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Boot of the machine in which it began.
    boot: String,
    /// When it began, in seconds since that boot.
    began: u64,
}

impl Trial {
    /// Whether the next migration of an uplink would be a new one, and not the continuation of one that was completed in this boot.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn would_begin(state: &Path, role: Role) -> anyhow::Result<bool> {
        Ok(match Store::of(state, role).load()? {
            Some(journal) => journal.phase != Phase::Done || !journal.is_of_this_boot()?,
            None => true,
        })
    }

    /// Begins a trial.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(state: &Path, role: Role) -> anyhow::Result<Self> {
        let trial = Self { boot: journal::boot_id()?, began: uptime()? };
        let path = path(state, role);
        journal::write_whole(&path, &serde_json::to_vec(&trial)?)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(trial)
    }

    /// The running trial. A file that cannot be read, or is from another boot, counts as none.
    pub fn under_way(state: &Path, role: Role) -> Option<Self> {
        let text = std::fs::read(path(state, role)).ok()?;
        let trial: Self = serde_json::from_slice(&text).ok()?;
        (trial.boot == journal::boot_id().ok()?).then_some(trial)
    }

    /// Ends the trial, whatever its result.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn end(state: &Path, role: Role) -> anyhow::Result<()> {
        match std::fs::remove_file(path(state, role)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", path(state, role).display()))
            }
            _ => Ok(()),
        }
    }

    /// Remaining part of `patience`.
    ///
    /// # Errors
    /// The time since the boot cannot be read.
    pub fn left(&self, patience: Duration) -> anyhow::Result<Duration> {
        Ok(left(self.began, uptime()?, patience))
    }
}

/// Remaining time; at least a quarter of `patience`, as the agent may have just started.
fn left(began: u64, now: u64, patience: Duration) -> Duration {
    patience.saturating_sub(Duration::from_secs(now.saturating_sub(began))).max(patience / 4)
}

fn path(state: &Path, role: Role) -> PathBuf {
    state.join(role.trial())
}

fn uptime() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime").context("read /proc/uptime")?;
    let whole = text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok());
    whole.with_context(|| format!("cannot parse /proc/uptime: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_started_again_goes_on_with_what_is_left() {
        let minute = Duration::from_secs(60);
        assert_eq!(left(100, 100, minute), minute);
        assert_eq!(left(100, 130, minute), minute / 2);
        assert_eq!(left(100, 500, minute), minute / 4);
        assert_eq!(left(100, 90, minute), minute);
    }

    #[test]
    fn it_is_under_way_until_it_ends_and_another_boot_s_is_none() {
        let (dir, role) = (tempfile::tempdir().unwrap(), Role::Gateway);
        assert!(Trial::would_begin(dir.path(), role).unwrap());
        assert_eq!(Trial::under_way(dir.path(), role), None);
        let trial = Trial::begin(dir.path(), role).unwrap();
        assert_eq!(Trial::under_way(dir.path(), role), Some(trial.clone()));
        let other = Trial { boot: "another".to_owned(), ..trial };
        std::fs::write(path(dir.path(), role), serde_json::to_vec(&other).unwrap()).unwrap();
        assert_eq!(Trial::under_way(dir.path(), role), None);
        Trial::end(dir.path(), role).unwrap();
        Trial::end(dir.path(), role).unwrap();
    }
}
