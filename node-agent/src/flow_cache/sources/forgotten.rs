//! Connections that the kernel's connection tracking forgets (`conntrack -D`, `conntrack -F`, OVN's `ct_flush`, a full table): OVS
//! sees the next packet of such a connection as one of a new connection, and may translate it otherwise or refuse it. So its entries end.
//!
//! Only the kernel's datapath tracks connections there. With the userspace datapath nothing tells of such an end; the agent's own
//! `dpctl/flush-conntrack` invalidates the cache, and changes by others are noticed by the refresh.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinError;

use crate::flow_cache::cache::CacheError;
use crate::flow_cache::cache::connections::{Added, Waiting};
use crate::flow_cache::invalidation::{Cause, Input};
use crate::flow_cache::state::Shared;
use crate::kernel::conntrack_events::{Forgotten, Heard, Monitor};

/// Before the subscription is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// 0: the kernel tells nothing; 2: nothing of connections that were made while nobody listened, as while the agent is restarted; 1: all.
const EVENTS: &str = "/proc/sys/net/netfilter/nf_conntrack_events";

/// Ends entries of connections that are forgotten. Never returns.
pub(in crate::flow_cache) async fn follow(shared: Arc<Shared>) {
    loop {
        let told = every_connection_is_told(Path::new(EVENTS));
        shared.check("have the kernel tell of all connections that end", told);
        let error = match Monitor::open() {
            Ok(monitor) => {
                shared.tracking_unheard.lock().clear();
                // Some may have ended while nobody listened.
                shared.take(Input::Changed(Cause::Connections));
                serve(&shared, &monitor).await
            }
            Err(error) => error,
        };
        let error = error.to_string();
        let last = std::mem::replace(&mut *shared.tracking_unheard.lock(), error.clone());
        if error != last {
            shared.metrics.failures.inc();
            tracing::error!(
                error,
                "cannot follow the kernel's connection tracking; entries of connections that it forgets end by their refresh"
            );
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A setting of the kernel that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", setting.display())]
struct SettingError {
    setting: PathBuf,
    source: io::Error,
}

/// Sets `nf_conntrack_events` to 1.
fn every_connection_is_told(setting: &Path) -> Result<(), SettingError> {
    let failed = |source| SettingError { setting: setting.to_path_buf(), source };
    let now = std::fs::read_to_string(setting).map_err(failed)?;
    if now.trim() == "1" {
        return Ok(());
    }
    std::fs::write(setting, "1").map_err(failed)
}

/// Serves one subscription. Returns why it ended.
async fn serve(shared: &Arc<Shared>, monitor: &Monitor) -> io::Error {
    let mut waiting = Waiting::default();
    let mut walk = None;
    loop {
        let due = if walk.is_none() { waiting.due(Instant::now()) } else { None };
        let timer = async {
            match due {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let walked = async {
            match &mut walk {
                Some(walk) => walk.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            heard = monitor.next() => match heard {
                Ok(Heard::Forgotten(all)) => add(shared, &mut waiting, &all),
                Ok(Heard::Lost) => {
                    shared.metrics.tracking_lost.inc();
                    shared.take(Input::Changed(Cause::Connections));
                }
                Err(error) => return error,
            },
            () = timer => {
                let ended = waiting.take(Instant::now());
                let Some(cache) = shared.cache.clone() else { continue };
                walk = Some(tokio::task::spawn_blocking(move || {
                    let begin = Instant::now();
                    (cache.end_connections(&ended), begin.elapsed())
                }));
            },
            done = walked => {
                walk = None;
                finish(shared, &mut waiting, done);
            }
        }
    }
}

fn add(shared: &Shared, waiting: &mut Waiting, all: &[Forgotten]) {
    for forgotten in all {
        match waiting.add(forgotten) {
            Added::Waits | Added::NoEntries => {}
            Added::Dropped => {
                shared.metrics.tracking_dropped.inc();
            }
            Added::Overflow => {
                tracing::warn!(
                    "too many tracked connections ended at once; all cached flows are invalidated"
                );
                shared.take(Input::Changed(Cause::Connections));
            }
        }
    }
}

fn finish(
    shared: &Shared,
    waiting: &mut Waiting,
    done: Result<(Result<u64, CacheError>, Duration), JoinError>,
) {
    let (ended, took) = done
        .unwrap_or_else(|error| (Err(CacheError::Programs(error.to_string())), Duration::from_millis(100)));
    waiting.walked(Instant::now(), took);
    match shared.check("end the entries of connections", ended) {
        Some(0) => {}
        Some(count) => {
            shared.metrics.tracking_ended.inc_by(count);
            tracing::debug!(count, ?took, "entries of connections that are not tracked any more ended");
        }
        // Entries that cannot be ended must not be used.
        None => {
            shared.take(Input::Changed(Cause::Connections));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_made_to_tell_of_all_connections() {
        let dir = tempfile::tempdir().unwrap();
        let setting = dir.path().join("nf_conntrack_events");
        assert!(every_connection_is_told(&setting).unwrap_err().to_string().contains("nf_conntrack_events"));
        for text in ["0\n", "1\n", "2\n"] {
            std::fs::write(&setting, text).unwrap();
            every_connection_is_told(&setting).unwrap();
            assert_eq!(std::fs::read_to_string(&setting).unwrap().trim(), "1");
        }
    }
}
