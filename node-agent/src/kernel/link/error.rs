//! Errors of rtnetlink and ethtool requests.

use std::io;

/// Error of a request to the kernel, with object and operation.
#[derive(Debug, thiserror::Error)]
#[error("interface {object}: {operation}: {source}")]
pub struct LinkError {
    /// Interface (with address or route).
    pub object: String,
    /// Failed operation.
    pub operation: &'static str,
    /// Error of the kernel.
    pub source: io::Error,
}

impl LinkError {
    pub(crate) fn new(object: impl Into<String>, operation: &'static str, source: io::Error) -> Self {
        Self { object: object.into(), operation, source }
    }

    pub(crate) fn netlink(
        object: impl Into<String>,
        operation: &'static str,
        error: rtnetlink::Error,
    ) -> Self {
        let source = match error {
            rtnetlink::Error::NetlinkError(message) => message.to_io(),
            other => io::Error::other(other),
        };
        Self::new(object, operation, source)
    }

    fn is(&self, errno: nix::errno::Errno) -> bool {
        self.source.raw_os_error() == Some(errno as i32)
    }

    /// True when the object exists already.
    pub fn already_exists(&self) -> bool {
        self.is(nix::errno::Errno::EEXIST)
    }

    /// True when the request may be retried at once.
    pub fn is_busy(&self) -> bool {
        self.is(nix::errno::Errno::EBUSY)
    }

    /// True when the next hop is unreachable or the source address does not exist.
    pub fn is_unreachable(&self) -> bool {
        use nix::libc::{EHOSTUNREACH, EINVAL, ENETUNREACH};
        self.source.raw_os_error().is_some_and(|code| [EHOSTUNREACH, ENETUNREACH, EINVAL].contains(&code))
    }

    /// True when the interface, address or route does not exist.
    pub fn is_missing(&self) -> bool {
        use nix::errno::Errno;
        [Errno::ENODEV, Errno::ENXIO, Errno::ESRCH, Errno::EADDRNOTAVAIL].into_iter().any(|e| self.is(e))
    }
}
