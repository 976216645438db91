//! A process by number and start time: a number alone may have been given to another process since.

use std::fs;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// A process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub pid: i32,
    /// Clock ticks since boot: field 22 of proc_pid_stat(5).
    start: u64,
}

impl Identity {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Result<Self> {
        let start = start_time(pid).with_context(|| format!("no process {pid}"))?;
        Ok(Self { pid, start })
    }

    /// Whether it still runs; a zombie does not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// Kills it, if it is still the same process.
    pub fn kill(&self) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot kill process {}", self.pid)),
        }
    }
}

/// Start time of a process that is there and no zombie.
fn start_time(pid: i32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may hold spaces and parentheses: fields are counted from the last one.
fn parse_stat(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest = (4..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_stat(&format!("7 (a) b) S {rest} 4711 23")), Some(4711));
        assert_eq!(parse_stat(&format!("7 (a) Z {rest} 4711 23")), None);
    }

    #[test]
    fn another_process_with_the_same_number_is_not_the_same() {
        let me = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.is_alive());
        assert!(!Identity { start: me.start + 1, ..me }.is_alive());
    }
}
