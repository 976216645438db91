//! Keeps plugin executable and CNI configuration installed: without them new pods get no network. Changed or removed files are
//! restored at once, and logged.

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use inotify::{Event, EventStream, Inotify, WatchMask, Watches};
use tokio::sync::Mutex;

use super::configurations::is_configuration;
use super::in_use::{self, InUse};
use crate::cni::installer::files::Files;
use crate::kube::announce::Outlet;
use crate::node::Node;

/// Name of the node condition.
pub const CONDITION: &str = "cni";

/// Interval of checks without an inotify event, as inotify watches may be exhausted.
const PERIOD: Duration = Duration::from_secs(30);
/// Delay after a write, in case another process keeps writing too.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes for events of one read: some dozens with names of usual length; one event needs 16 + 255 + 1 at most.
const BUFFER: usize = 4096;

/// Installs the files and keeps them installed; errors are logged and retried. Sends configurations that the runtime prefers to
/// `outlet`. Never returns.
pub async fn keep(node: &Node, files: Files, outlet: &Outlet<InUse>) {
    let files = Arc::new(files);
    let watch = Watch::open();
    let mut installed = false;
    loop {
        // The watch is set before the check, so that later changes are noticed.
        watch.watch(&files);
        let looked = Arc::clone(&files);
        let done = tokio::task::spawn_blocking(move || {
            let written = looked.put_right()?;
            if looked.remove_outdated()? {
                tracing::info!(
                    "CNI configuration of an earlier agent removed: another plugin has the cluster's network"
                );
            }
            let in_use = looked.in_use().context("list CNI configurations")?;
            let written: Vec<_> = written.into_iter().map(|file| (file.what, file.path.clone())).collect();
            anyhow::Ok((written, in_use))
        });
        let done = done.await.unwrap_or_else(|e| Err(e.into()));
        let quiet = match &done {
            Ok((written, now)) => {
                for (what, path) in written.iter().filter(|_| installed) {
                    node.metrics.cni_file_restored(what);
                    tracing::warn!(file = %path.display(), "CNI {what} was missing or changed; written again");
                }
                node.health.met(CONDITION);
                in_use::tell(node, now);
                outlet.put(now.clone());
                installed = true;
                written.is_empty()
            }
            Err(error) => {
                node.health.not_met(CONDITION, format!("{error:#}"));
                false
            }
        };
        if quiet {
            // Both trigger a check.
            let _ = tokio::time::timeout(PERIOD, watch.changed(&files)).await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Watches directories for changes (inotify(7)).
struct Watch(Option<Stream>);

struct Stream {
    watches: Watches,
    events: Mutex<EventStream<[u8; BUFFER]>>,
}

impl Watch {
    /// Without a watch only the periodic check remains.
    fn open() -> Self {
        let open = || {
            let inotify = Inotify::init()?;
            let watches = inotify.watches();
            let events = Mutex::new(inotify.into_event_stream([0; BUFFER])?);
            io::Result::Ok(Stream { watches, events })
        };
        let opened = open().inspect_err(|error| {
            tracing::warn!(%error, "inotify not available; CNI files are checked every {PERIOD:?} only");
        });
        Self(opened.ok())
    }

    /// Watches the directories; watching one again has no effect.
    fn watch(&self, files: &Files) {
        let Some(stream) = &self.0 else { return };
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let add = |directory: &Path| {
            std::fs::create_dir_all(directory)?;
            stream.watches.clone().add(directory, mask)
        };
        for directory in files.directories() {
            if let Err(error) = add(directory) {
                // A directory that cannot be created is reported when its file cannot be written.
                tracing::debug!(directory = %directory.display(), %error, "directory not watched");
            }
        }
    }

    /// Waits for a change of one of the files, of another configuration, or of a directory.
    async fn changed(&self, files: &Files) {
        while !concerns(files, &self.event().await) {}
    }

    /// Waits for the next event; pending forever without inotify.
    async fn event(&self) -> Event<OsString> {
        let Some(stream) = &self.0 else { return pending().await };
        match stream.events.lock().await.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                tracing::warn!(%error, "inotify failed; CNI files are checked every {PERIOD:?} only");
                pending().await
            }
            None => pending().await,
        }
    }
}

/// Whether an event is relevant. One without a name concerns a directory, or lost events.
fn concerns(files: &Files, event: &Event<OsString>) -> bool {
    event.name.as_deref().is_none_or(|name| files.has_name(name) || is_configuration(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::installer::configurations::CONF;

    /// The task's own write of a file must wake it.
    async fn wakes(watch: &Watch, files: &Files) {
        tokio::time::timeout(Duration::from_secs(20), watch.changed(files)).await.unwrap();
    }

    #[tokio::test]
    async fn changes_of_our_files_of_configurations_and_of_directories_wake_and_those_of_others_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("conf");
        std::fs::create_dir(&conf).unwrap();
        let files = Files::configuration_only(&conf, Path::new("/run/x.sock"));
        let watch = Watch::open();
        watch.watch(&files);
        std::fs::write(conf.join("notes.txt"), "{}").unwrap();
        assert!(!concerns(&files, &watch.event().await));
        std::fs::write(conf.join("05-other.conf"), "{}").unwrap();
        wakes(&watch, &files).await;
        files.put_right().unwrap();
        wakes(&watch, &files).await;
        std::fs::write(conf.join(CONF), "{").unwrap();
        wakes(&watch, &files).await;
        std::fs::remove_file(conf.join(CONF)).unwrap();
        wakes(&watch, &files).await;
        std::fs::remove_dir_all(&conf).unwrap();
        wakes(&watch, &files).await;
        watch.watch(&files);
        files.put_right().unwrap();
        wakes(&watch, &files).await;
        // The present files need no further write.
        assert!(files.put_right().unwrap().is_empty());
    }
}
