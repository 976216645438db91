//! A monitor that is under way: the handle on its replica.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::command::Command;
use crate::replica::{ChangeStream, Core, Snapshot};

/// A typed, indexed copy of the monitored tables. Clones share it.
///
/// Updates are applied completely: a [`Snapshot`] never shows half of a transaction. While the session is down the last contents stay
/// readable.
#[derive(Debug, Clone)]
pub struct Replica {
    handle: Arc<Handle>,
}

/// Ends the monitor when the last [`Replica`] goes.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A session that is gone has nothing to cancel.
        let _ = self.commands.send(Command::CancelMonitor(self.core.id));
    }
}

impl Replica {
    pub(crate) fn new(core: Arc<Core>, commands: mpsc::UnboundedSender<Command>) -> Self {
        Self { handle: Arc::new(Handle { core, commands }) }
    }

    /// Access to the tables. Updates wait while a snapshot is held, so keep it short and never across an await.
    pub fn read(&self) -> Snapshot<'_> {
        self.handle.core.snapshot()
    }

    /// Changes from now on. To miss nothing, take the stream first and read the tables after.
    pub fn changes(&self) -> ChangeStream {
        ChangeStream::new(self.handle.core.subscribe())
    }

    /// Whether the session is up and the contents follow the server. False from the loss of the connection until the
    /// contents have been brought up to date again.
    pub fn is_synced(&self) -> bool {
        self.handle.core.is_synced()
    }

    /// Follows [`Replica::is_synced`].
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.handle.core.synced()
    }
}
