//! Whether this process may write.

use ovsdb_client::{Client, Error, Lock};
use tokio::sync::watch;

use super::LOCK;

/// Whether this process may write, now and as it changes.
#[derive(Debug, Clone)]
pub struct Leadership {
    held: watch::Receiver<bool>,
    elected: bool,
}

impl Leadership {
    /// Without an election: held from the start and permanently. Only the database's lock decides between two controllers.
    pub fn always() -> Self {
        Self { held: watch::channel(true).1, elected: false }
    }

    /// By an election, which tells whether it is won.
    pub fn elected(held: watch::Receiver<bool>) -> Self {
        Self { held, elected: true }
    }

    /// Whether it is held now.
    pub fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Waits for a change; never returns where there will be none.
    pub(super) async fn changed(&mut self) {
        if self.held.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it is held, then requests the database's lock. Who was elected takes it from whoever has it: the former
    /// leader has given up by its own clock, and its session may be a dead machine's, which the server would honour for
    /// minutes; if it lives after all, it cannot write any more.
    pub(super) async fn lock(mut self, client: Client) -> Result<Lock, Error> {
        while !self.is_held() {
            self.changed().await;
        }
        if self.elected { client.steal_lock(LOCK).await } else { client.lock(LOCK).await }
    }
}
