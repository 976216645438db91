//! Signals that would end the process, so that a measurement can leave everything as it was.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// Signals caught from now on: SIGINT, SIGTERM and SIGHUP.
pub(super) struct Interrupts(Receiver<Signal>);

/// A signal came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interrupted;

impl Interrupts {
    /// Catches the signals. To be called before other threads are there.
    pub(super) fn catch() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block()?;
        let (send, receive) = channel();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(signal) = signals.wait() {
                if send.send(signal).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self(receive))
    }

    /// Waits, unless a signal comes or has come.
    pub(super) fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        match self.0.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            // Without the thread that waits for signals none is seen.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => Err(Interrupted),
        }
    }
}
