//! The stream of changes to a replica.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};
use uuid::Uuid;

use crate::Row;

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// The row is new here.
    Inserted,
    /// Monitored columns changed.
    Modified,
    /// The row is gone, or meets the monitor's conditions no more.
    Deleted,
}

/// Change of one row.
#[derive(Clone)]
pub struct RowChange {
    /// Table name.
    pub table: &'static str,
    /// Identifier of the row.
    pub uuid: Uuid,
    /// What happened.
    pub kind: ChangeKind,
    old: Option<Arc<dyn Any + Send + Sync>>,
    new: Option<Arc<dyn Any + Send + Sync>>,
}

impl RowChange {
    pub(super) fn new<R: Row>(uuid: Uuid, old: Option<Arc<R>>, new: Option<Arc<R>>) -> Self {
        let kind = match (&old, &new) {
            (None, _) => ChangeKind::Inserted,
            (Some(_), Some(_)) => ChangeKind::Modified,
            (Some(_), None) => ChangeKind::Deleted,
        };
        Self { table: R::TABLE, uuid, kind, old: old.map(|row| row as _), new: new.map(|row| row as _) }
    }

    /// The row before the change, if it is of type `R` and was there.
    pub fn old<R: Row>(&self) -> Option<&R> {
        self.old.as_ref()?.downcast_ref()
    }

    /// The row after the change, if it is of type `R` and is there. The replica may be further on by now.
    pub fn new_row<R: Row>(&self) -> Option<&R> {
        self.new.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for RowChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowChange")
            .field("table", &self.table)
            .field("uuid", &self.uuid)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// One item of a [`ChangeStream`].
#[derive(Debug, Clone)]
pub enum Change {
    /// The row changes of one server update, or the net difference after a reconnect.
    Rows(Vec<RowChange>),
    /// The reader was too slow and changes were dropped: read everything again. Later items may tell of changes that
    /// this reading already shows.
    Resync,
}

/// Changes to a replica, in order. Bounded: a reader that falls behind gets [`Change::Resync`], never unbounded memory.
#[derive(Debug)]
pub struct ChangeStream {
    receiver: broadcast::Receiver<Arc<Vec<RowChange>>>,
}

impl ChangeStream {
    pub(crate) fn new(receiver: broadcast::Receiver<Arc<Vec<RowChange>>>) -> Self {
        Self { receiver }
    }

    /// The next change; `None` when the replica has ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Change> {
        match self.receiver.recv().await {
            Ok(rows) => Some(Change::Rows(Arc::unwrap_or_clone(rows))),
            Err(RecvError::Lagged(messages)) => {
                tracing::debug!(
                    messages,
                    "change stream overflowed; its reader has to read everything again"
                );
                // What is still queued is older than the reading that follows: forget it.
                self.receiver = self.receiver.resubscribe();
                Some(Change::Resync)
            }
            Err(RecvError::Closed) => None,
        }
    }
}
