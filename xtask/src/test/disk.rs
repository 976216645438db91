//! Room on the disk of the build. A run that takes all of it fails in places that say nothing of it: kubelets evict pods,
//! databases stand still.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::statvfs::statvfs;

use crate::paths;

/// What a whole run takes at most from a clean checkout, in bytes: programs and tests, images, what the clusters write.
const TAKEN: u64 = 12_000_000_000;

const INTERVAL: Duration = Duration::from_secs(1);

/// Bytes that programs may still write on the disk of the build.
pub(super) fn free() -> Result<u64> {
    let target = paths::target();
    let directory = if target.exists() { target } else { paths::root() };
    let disk = statvfs(&directory).with_context(|| format!("room on the disk of {}", directory.display()))?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// What is to be said before a run that may not have the room that it takes.
pub(super) fn warning(free: u64, built: bool) -> Option<String> {
    (!built && free < TAKEN).then(|| {
        format!(
            "{} are free on the disk of the build, and a run from a clean checkout takes {}: it may end without room",
            Size(free),
            Size(TAKEN)
        )
    })
}

/// Notes in a thread of its own how little room there was.
pub(super) struct Watch {
    ended: std::sync::Arc<AtomicBool>,
    thread: JoinHandle<Least>,
}

/// The least room that there was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    first: u64,
    least: u64,
    /// When, since the watch began.
    after: Duration,
}

impl Watch {
    pub(super) fn begin() -> Result<Self> {
        let ended = std::sync::Arc::new(AtomicBool::new(false));
        let first = free()?;
        let stop = std::sync::Arc::clone(&ended);
        let thread = thread::Builder::new()
            .name("disk".into())
            .spawn(move || {
                let begin = Instant::now();
                let mut least = Least { first, least: first, after: Duration::ZERO };
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(INTERVAL);
                    if let Ok(now) = free() {
                        least.see(now, begin.elapsed());
                    }
                }
                least
            })
            .context("thread that watches the disk")?;
        Ok(Self { ended, thread })
    }

    pub(super) fn end(self) -> Result<Least> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the thread that watches the disk has panicked")
    }
}

impl Least {
    fn see(&mut self, now: u64, after: Duration) {
        if now < self.least {
            (self.least, self.after) = (now, after);
        }
    }
}

impl fmt::Display for Least {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, least, after } = *self;
        write!(
            f,
            "disk: {} free at the beginning, at the least {} after {after:.0?}",
            Size(first),
            Size(least)
        )
    }
}

/// Bytes, shown in gigabytes.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000_000;
        write!(f, "{}.{} GB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_room_is_told_before_it_begins_unless_most_is_built() {
        assert_eq!(warning(TAKEN, false), None);
        assert_eq!(warning(TAKEN / 2, true), None);
        let said = warning(TAKEN / 2, false).unwrap();
        assert!(said.starts_with("6.0 GB are free"), "{said}");
    }

    #[test]
    fn the_least_room_and_its_time_are_kept() {
        let mut least = Least { first: 9_000_000_000, least: 9_000_000_000, after: Duration::ZERO };
        for (seconds, now) in [(1, 8_000_000_000), (2, 2_340_000_000), (3, 5_000_000_000)] {
            least.see(now, Duration::from_secs(seconds));
        }
        assert_eq!(least.to_string(), "disk: 9.0 GB free at the beginning, at the least 2.3 GB after 2s");
    }

    #[test]
    fn the_disk_of_the_build_has_some_room() {
        let watch = Watch::begin().unwrap();
        assert!(free().unwrap() > 0);
        watch.end().unwrap();
    }
}
