//! Forwards log records of the programs (a sample of malformed packets) to `tracing`.

use std::os::fd::AsFd;

use aya_log::EbpfLogger;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Error, Programs};

/// The programs' log.
pub struct Log(EbpfLogger<Relay>);

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Log")
    }
}

/// Passes records on to `tracing`.
struct Relay;

impl ::log::Log for Relay {
    fn enabled(&self, _: &::log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &::log::Record<'_>) {
        tracing::debug!(target: "slipstream::ebpf", "malformed packet: {}", record.args());
    }

    fn flush(&self) {}
}

impl Programs {
    /// The programs' log, to be [run](Log::run) in a task. It can be taken once, and is empty unless loaded with
    /// [`super::Options::log_malformed`].
    ///
    /// # Errors
    /// It was taken already, or cannot be opened.
    pub fn take_log(&mut self) -> Result<Log, Error> {
        EbpfLogger::init_with_logger(&mut self.ebpf, Relay)
            .map(Log)
            .map_err(|error| Error::Log(std::io::Error::other(error.to_string())))
    }
}

impl Log {
    /// Forwards records until the task ends.
    ///
    /// # Errors
    /// The ring buffer cannot be watched.
    pub async fn run(self) -> Result<(), Error> {
        fcntl(self.0.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|errno| Error::Log(errno.into()))?;
        #[expect(
            deprecated,
            reason = "the successor is unsafe; its condition holds: the logger owns one descriptor"
        )]
        let mut fd = AsyncFd::with_interest(self.0, Interest::READABLE).map_err(Error::Log)?;
        loop {
            let mut ready = fd.readable_mut().await.map_err(Error::Log)?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}
