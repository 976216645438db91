//! Why a flow monitor is not connected.

use std::path::PathBuf;

/// Why the flow monitor of a bridge is not connected. Errors of the kernel are kept as text, as reasons are compared with each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MonitorError {
    /// The agent is starting.
    #[error("not connected yet")]
    NotYet,
    /// OVS is on another machine, or its socket is not known.
    #[error("--ovs-db {ovs_db} is not a unix socket on this node")]
    Elsewhere {
        /// `--ovs-db`.
        ovs_db: String,
    },
    /// The bridge is not there.
    #[error("no gateway bridge yet")]
    NoBridge,
    /// Nobody listens on the bridge's management socket.
    #[error("{}: {problem}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Error of the kernel.
        problem: String,
    },
    /// The greeting cannot be sent.
    #[error("OpenFlow hello: {0}")]
    Hello(String),
    /// End of file.
    #[error("connection closed by OVS")]
    Closed,
    /// The connection cannot be read.
    #[error("read: {0}")]
    Read(String),
    /// The connection cannot be written.
    #[error("write: {0}")]
    Write(String),
    /// The monitor was asked to stop.
    #[error("stopped")]
    Stopped,
    /// OVS does not speak the version that is needed.
    #[error("the bridge does not support OpenFlow 1.5; add OpenFlow15 to column `protocols` of the bridge")]
    Version,
    /// OVS refuses to send changes of flows.
    #[error("OVS rejects the flow monitor: OpenFlow error type {kind}, code {code}")]
    Rejected {
        /// Type of the OpenFlow error.
        kind: u16,
        /// Code of the OpenFlow error.
        code: u16,
    },
}
