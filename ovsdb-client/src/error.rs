//! Errors, distinguished so that a caller can decide whether to retry.

use std::time::Duration;

/// Error of the client. [`Error::outcome_unknown`] and [`Error::not_sent`] say whether a retry could do the work twice.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// There was no session; the request was not sent, so nothing happened on the server.
    #[error("not connected to OVSDB at {endpoints}: {reason}")]
    NotConnected {
        /// The configured endpoint list.
        endpoints: String,
        /// The last failure.
        reason: String,
    },
    /// The session ended after the request was sent and before its reply came: it may or may not have been carried out.
    #[error("connection lost before the reply to {method:?} came ({reason}); it may have been carried out")]
    OutcomeUnknown {
        /// JSON-RPC method.
        method: String,
        /// Why the session ended.
        reason: String,
    },
    /// No reply within the call timeout. The request may have been, or may still be, carried out.
    #[error("no reply to {method:?} within {after:?}; it may have been carried out")]
    Timeout {
        /// JSON-RPC method.
        method: String,
        /// The timeout that passed.
        after: Duration,
    },
    /// The server answered the request with a JSON-RPC error.
    #[error("OVSDB method {method:?} failed: {error}")]
    Rpc {
        /// JSON-RPC method.
        method: String,
        /// The error as the server sent it.
        error: String,
    },
    /// One operation of a transaction failed; nothing of the transaction was done.
    #[error("operation {index} ({op}) of the transaction failed: {error}: {details}")]
    Operation {
        /// Position in the transaction, from 0.
        index: usize,
        /// What the operation was, as in `insert Logical_Switch`.
        op: String,
        /// Error tag, as in `constraint violation`.
        error: String,
        /// Explanation by the server.
        details: String,
    },
    /// Every operation was fine by itself, the commit was refused (unique index, referential integrity, ...); nothing was done.
    #[error("commit of the transaction failed: {error}: {details}")]
    Commit {
        /// Error tag, as in `referential integrity violation`.
        error: String,
        /// Explanation by the server.
        details: String,
    },
    /// The client already holds or waits for the lock of this name.
    #[error("lock {0:?} was already requested by this client")]
    LockInUse(String),
    /// The peer sent something that is not OVSDB.
    #[error("OVSDB protocol error: {0}")]
    Protocol(String),
    /// An argument cannot be used; the message says what would be right.
    #[error("{0}")]
    Invalid(String),
    /// The session task is gone (its runtime was shut down).
    #[error("the OVSDB session has ended")]
    Closed,
}

impl Error {
    /// True when the server may have carried out the request although no reply came.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. } | Self::Timeout { .. })
    }

    /// True when the server could not write to its disk; nothing was done, and it may work once there is room.
    pub fn is_servers_disk(&self) -> bool {
        // RFC 7047 section 4.1.3.
        matches!(self, Self::Commit { error, .. } | Self::Operation { error, .. } if error == "I/O error")
    }

    /// True when the request was not sent, so that sending it later is safe.
    pub fn not_sent(&self) -> bool {
        matches!(self, Self::NotConnected { .. })
    }
}
