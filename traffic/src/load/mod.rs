//! The driving end: what one thread does, and threads together through warm-up and measurement.

mod drive;
mod exchange;
mod pace;
mod rate;
mod stream;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, bail};

pub(crate) use drive::{Tally, Together};
pub(crate) use exchange::{Exchange, Outcome, exchanges};
pub(crate) use rate::rate_threads;
pub(crate) use stream::{Directions, Stream, stream_threads};

use crate::protocol::control::Settings;

/// How long one operation on a data connection may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Where a test sends its data, and for which session.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) data: SocketAddr,
    pub(crate) tag: u64,
    pub(crate) settings: Settings,
    /// Transactions, datagrams or connections per second, of all connections together.
    pub(crate) rate: Option<f64>,
}

/// What the threads of a test do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    WarmUp,
    Measure,
    /// Load, which does not count any more.
    After,
    Stop,
}

/// What the threads of a test share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    phase: AtomicU8,
    /// Transactions, datagrams or bytes of the measurement, for whoever watches.
    pub(crate) done: AtomicU64,
}

impl Shared {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            2 => Phase::After,
            _ => Phase::Stop,
        }
    }

    pub(crate) fn set(&self, phase: Phase) {
        let code = match phase {
            Phase::WarmUp => 0,
            Phase::Measure => 1,
            Phase::After => 2,
            Phase::Stop => 3,
        };
        self.phase.store(code, Relaxed);
    }
}

/// Fails at once if a data connection gets no welcome: the reason is the path, not the load.
fn no_welcome(data: SocketAddr, error: &std::io::Error) -> Result<()> {
    bail!(
        "no welcome on the data connection to {data} ({error}): does that address lead to the server of the control connection?"
    )
}
