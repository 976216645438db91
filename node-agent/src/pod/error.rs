//! Errors of connecting and disconnecting pods.

use crate::kernel::link::LinkError;
use crate::kernel::netns::NetnsError;

/// Why a pod could not be connected or disconnected.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Error of a link, address or route.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Error of the pod's network namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// An interface with the name exists already.
    #[error("{0}; the existing interface is not changed")]
    Taken(String),
    /// Error of the eBPF programs of a container.
    #[error("eBPF programs of container {container}: {reason}")]
    Programs {
        /// Container id.
        container: String,
        /// Error text.
        reason: String,
    },
    /// A thread ended before its work was done.
    #[error("{what}: {reason}")]
    Thread {
        /// Work of the thread.
        what: String,
        /// How the thread ended.
        reason: String,
    },
    /// A step failed, and undoing the steps before failed too.
    #[error("{cause}; and undoing it failed: {left}")]
    NotUndone {
        /// Error of the step.
        cause: Box<Self>,
        /// Error of undoing.
        left: LinkError,
    },
}
