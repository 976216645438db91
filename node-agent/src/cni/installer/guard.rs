//! Keeping the runtime's two files as they shall be: whoever breaks or removes them takes the node's network away from
//! all new pods, so they are written again at once, and that is told.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use tokio::io::unix::AsyncFd;

use super::in_use::{self, InUse, is_configuration};
use crate::cni::installer::files::Files;
use crate::kube::announce::Outlet;
use crate::node::Node;

/// Condition of the node.
pub const CONDITION: &str = "cni";

/// Between two looks where nothing was noticed: a kernel may have no more watches to give.
const PERIOD: Duration = Duration::from_secs(30);
/// Before the next look after a write: somebody may write as eagerly as we do.
const PAUSE: Duration = Duration::from_secs(1);

/// Installs the files, and then keeps them, for ever. What goes wrong is told and tried again. So is what the runtime takes
/// before them: `outlet` gets it.
pub async fn keep(node: &Node, files: Files, outlet: &Outlet<InUse>) {
    let files = Arc::new(files);
    let watch = Watch::open();
    let mut installed = false;
    loop {
        // The watch comes first: a change after the look then wakes us.
        watch.watch(&files);
        let looked = Arc::clone(&files);
        let done = tokio::task::spawn_blocking(move || {
            let written = looked.put_right()?;
            let in_use = looked.configurations().map(InUse::look).transpose();
            let in_use = in_use.context("look for CNI configurations of others")?;
            let written: Vec<_> = written.into_iter().map(|file| (file.what, file.path.clone())).collect();
            anyhow::Ok((written, in_use))
        });
        let done = done.await.unwrap_or_else(|e| Err(e.into()));
        let quiet = match &done {
            Ok((written, now)) => {
                for (what, path) in written.iter().filter(|_| installed) {
                    node.metrics.cni_file_restored(what);
                    tracing::warn!(file = %path.display(), "the CNI {what} was missing or changed, and is written again");
                }
                node.health.met(CONDITION);
                if let Some(now) = now {
                    in_use::tell(node, now);
                    outlet.put(now.clone());
                }
                installed = true;
                written.is_empty()
            }
            Err(error) => {
                node.health.not_met(CONDITION, format!("{error:#}"));
                false
            }
        };
        if quiet {
            // Either is a reason to look.
            let _ = tokio::time::timeout(PERIOD, watch.changed(&files)).await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Notices changes in directories.
struct Watch(Option<AsyncFd<Fd>>);

struct Fd(Inotify);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watch {
    /// Without a watch the clock must do.
    #[expect(deprecated, reason = "the safe way; what it holds owns its descriptor as long as it lives")]
    fn open() -> Self {
        let open = || {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            AsyncFd::new(Fd(inotify))
        };
        let opened = open().inspect_err(|error: &io::Error| {
            tracing::warn!(%error, "no inotify: the CNI files are only looked at every {PERIOD:?}");
        });
        Self(opened.ok())
    }

    /// Watches the directories as they are now. Watching one again changes nothing.
    fn watch(&self, files: &Files) {
        let Some(fd) = &self.0 else { return };
        let mask = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let add = |directory: &Path| {
            std::fs::create_dir_all(directory)?;
            fd.get_ref().0.add_watch(directory, mask)?;
            io::Result::Ok(())
        };
        for directory in files.directories() {
            if let Err(error) = add(directory) {
                // A directory that cannot be made is told when the file in it cannot be written.
                tracing::debug!(directory = %directory.display(), %error, "not watched");
            }
        }
    }

    /// Waits until something happened to one of the files, to a configuration of others, or to a directory as a whole.
    async fn changed(&self, files: &Files) {
        while !concerns(files, &self.events().await) {}
    }

    /// The next events; where there can be none, it waits for ever.
    async fn events(&self) -> Vec<InotifyEvent> {
        let Some(fd) = &self.0 else { return pending().await };
        loop {
            let Ok(mut ready) = fd.readable().await else { return pending().await };
            match ready.try_io(|fd| Ok(fd.get_ref().0.read_events()?)) {
                Err(_would_block) => {}
                Ok(Ok(events)) => return events,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "inotify: the CNI files are only looked at every {PERIOD:?}");
                    return pending().await;
                }
            }
        }
    }
}

/// Events without a name are about a directory as a whole, or about events that were lost.
fn concerns(files: &Files, events: &[InotifyEvent]) -> bool {
    events
        .iter()
        .any(|event| event.name.as_deref().is_none_or(|name| files.has_name(name) || is_configuration(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::installer::files::CONF;

    /// A change of ours must wake us.
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
        assert!(!concerns(&files, &watch.events().await));
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
        // What is there now needs no further write.
        assert!(files.put_right().unwrap().is_empty());
    }
}
