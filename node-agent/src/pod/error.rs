//! Why a pod could not be connected or disconnected.

use crate::kernel::link::LinkError;
use crate::kernel::netns::NetnsError;

/// A step of connecting a pod that failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A link, address or route.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The pod's network namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// An interface of that name is there already; it is left alone.
    #[error("{0}; it is left as it is")]
    Taken(String),
    /// The eBPF programs of a container.
    #[error("eBPF programs of container {container}: {reason}")]
    Programs {
        /// Container id.
        container: String,
        /// What the kernel says.
        reason: String,
    },
    /// A thread ended before its work.
    #[error("{what}: {reason}")]
    Thread {
        /// What it worked on.
        what: String,
        /// How it ended.
        reason: String,
    },
    /// A step failed, and so did undoing those before it.
    #[error("{cause}; and undoing it failed: {left}")]
    NotUndone {
        /// The step that failed.
        cause: Box<Self>,
        /// What could not be undone.
        left: LinkError,
    },
}
