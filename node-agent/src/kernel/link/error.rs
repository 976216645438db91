//! What can go wrong with links: always with the object and what was tried.

use std::io;

/// A request to the kernel about an interface failed.
#[derive(Debug, thiserror::Error)]
#[error("interface {object}: {operation}: {source}")]
pub struct LinkError {
    /// The interface, by name where it is known.
    pub object: String,
    /// What was tried.
    pub operation: &'static str,
    /// The kernel's answer.
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

    /// The object (interface, address or route) is there already.
    pub fn already_exists(&self) -> bool {
        self.is(nix::errno::Errno::EEXIST)
    }

    /// The kernel could not answer at this moment.
    pub fn is_busy(&self) -> bool {
        self.is(nix::errno::Errno::EBUSY)
    }

    /// Nothing leads to the next hop, or the source address is not there.
    pub fn is_unreachable(&self) -> bool {
        use nix::libc::{EHOSTUNREACH, EINVAL, ENETUNREACH};
        self.source.raw_os_error().is_some_and(|code| [EHOSTUNREACH, ENETUNREACH, EINVAL].contains(&code))
    }

    /// The interface, address or route is not there.
    pub fn is_missing(&self) -> bool {
        use nix::errno::Errno;
        [Errno::ENODEV, Errno::ENXIO, Errno::ESRCH, Errno::EADDRNOTAVAIL].into_iter().any(|e| self.is(e))
    }
}
