//! One slice of transactions, timed inside the end that asks: from the first to the last, so that no pipe is a part of it.

use std::time::Duration;

use anyhow::Result;
use traffic::Transactions;

use super::Measured;
use super::session::{Command, Session};

/// Runs slices as ordered, without end.
pub(super) fn run(mut session: Session, mut transaction: impl FnMut() -> Result<()>) -> Result<()> {
    while let Some(Command { length, peer }) = session.next() {
        let begin = session.begin(peer)?;
        let mut measured = transactions(length, &mut transaction)?;
        measured.away = session.away(begin)?;
        session.answer(&measured)?;
    }
    Ok(())
}

/// Runs transactions through the warm-up and the slice, and counts those of the slice.
pub(super) fn transactions(length: Duration, transaction: impl FnMut() -> Result<()>) -> Result<Measured> {
    let Transactions { per_second, median_us } = traffic::transactions(length, transaction)?;
    Ok(Measured { per_second, median_us, ..Measured::default() })
}
