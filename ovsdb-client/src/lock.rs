//! OVSDB locks (RFC 7047 sections 4.1.8 to 4.1.10): the fence under a leader election.

use tokio::sync::{mpsc, watch};

use crate::command::Command;

/// A requested lock. Released on drop.
#[derive(Debug)]
pub struct Lock {
    /// Whether the lock is ours. False while the session is down.
    pub owned: watch::Receiver<bool>,
    id: u64,
    name: String,
    commands: mpsc::UnboundedSender<Command>,
}

impl Lock {
    pub(crate) fn new(
        id: u64,
        name: String,
        owned: watch::Receiver<bool>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Self { owned, id, name, commands }
    }

    /// Name of the lock, for [`crate::Transaction::assert_lock`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the lock is ours now.
    pub fn is_owned(&self) -> bool {
        *self.owned.borrow()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A session that is gone holds no lock.
        let _ = self.commands.send(Command::Unlock { id: self.id, name: std::mem::take(&mut self.name) });
    }
}
