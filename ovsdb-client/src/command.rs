//! What handles ask of the session.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};

use crate::Error;
use crate::replica::Core;

/// What handles ask of the session.
#[derive(Debug)]
pub(crate) enum Command {
    /// Send a request, hand back the reply.
    Call(Request),
    /// The caller of the request with this ticket has gone.
    Abandon(u64),
    /// Keep a replica current.
    Monitor { core: Arc<Core>, done: oneshot::Sender<Result<(), Error>> },
    /// Stop doing so.
    CancelMonitor(u64),
    /// Request a lock.
    Lock {
        id: u64,
        name: String,
        steal: bool,
        owned: watch::Sender<bool>,
        done: oneshot::Sender<Result<(), Error>>,
    },
    /// Give it back.
    Unlock { id: u64, name: String },
}

/// A request to send.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) ticket: u64,
    pub(crate) method: String,
    pub(crate) params: Box<RawValue>,
    pub(crate) done: oneshot::Sender<Result<Box<RawValue>, Error>>,
}
