//! Whether this controller may write to the database: leader election and the database's lock.

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

    /// By an election, which reports whether it is won.
    pub fn elected(held: watch::Receiver<bool>) -> Self {
        Self { held, elected: true }
    }

    /// Whether the leadership is held now.
    pub fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Waits for a change; never returns where there will be none.
    pub(super) async fn changed(&mut self) {
        if self.held.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the leadership is held, then requests the database's lock. An elected process steals the lock from any holder:
    /// the former leader has given up by its own clock. Its session may belong to a dead machine, and the server would honour it for
    /// minutes; if the former leader is alive after all, it can no longer write.
    pub(super) async fn lock(mut self, client: Client) -> Result<Lock, Error> {
        while !self.is_held() {
            self.changed().await;
        }
        if self.elected { client.steal_lock(LOCK).await } else { client.lock(LOCK).await }
    }
}
