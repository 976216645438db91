//! One slice of transactions, timed inside the end that asks: from the first to the last, so that no pipe is a part of it.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::session::{Command, Session};
use super::{Measured, per_second};

/// The first part of a slice brings code and data into the CPU's caches, and is not counted: one over this.
const WARM_UP: u32 = 10;

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
pub(super) fn transactions(
    length: Duration,
    mut transaction: impl FnMut() -> Result<()>,
) -> Result<Measured> {
    let warm = Instant::now() + length / WARM_UP;
    while Instant::now() < warm {
        transaction()?;
    }
    let mut times = Vec::with_capacity(1 << 14);
    let start = Instant::now();
    let mut before = start;
    while before < start + length {
        transaction()?;
        let now = Instant::now();
        times.push(now.duration_since(before));
        before = now;
    }
    let count = u64::try_from(times.len())?;
    let half = times.len() / 2;
    // At least one, unless the slice has no length.
    let median_us = (count > 0).then(|| times.select_nth_unstable(half).1.as_secs_f64() * 1e6);
    let per_second = per_second(count, before.duration_since(start));
    Ok(Measured { per_second, median_us, ..Measured::default() })
}
