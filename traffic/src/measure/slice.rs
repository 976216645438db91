//! One slice of transactions, timed from the first to the last by the end that makes them.

use std::time::{Duration, Instant};

/// The first part of a slice brings code and data into the CPU's caches, and is not counted: one over this.
pub(crate) const WARM_UP: u32 = 10;

/// What a slice of transactions has given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transactions {
    /// Transactions per second.
    pub per_second: f64,
    /// Half of them took less than this, in microseconds. `None` without any, which only a slice without a length has.
    pub median_us: Option<f64>,
}

/// Runs transactions through the warm-up, a tenth more, and the slice, and counts those of the slice.
///
/// # Errors
/// That of the transaction that failed.
pub fn transactions<E>(
    length: Duration,
    mut transaction: impl FnMut() -> Result<(), E>,
) -> Result<Transactions, E> {
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
    let (count, half) = (u64::try_from(times.len()).unwrap_or(u64::MAX), times.len() / 2);
    let median_us = (count > 0).then(|| times.select_nth_unstable(half).1.as_secs_f64() * 1e6);
    let per_second = super::per_second(count, before.duration_since(start).as_secs_f64());
    Ok(Transactions { per_second, median_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_not_counted_and_an_error_ends_the_slice() {
        let mut count = 0;
        let slice = transactions(Duration::from_millis(20), || {
            count += 1;
            std::thread::sleep(Duration::from_millis(1));
            Ok::<_, ()>(())
        });
        let Transactions { per_second, median_us } = slice.unwrap();
        assert!(per_second * 0.02 < f64::from(count) && per_second < 1000.0, "{per_second} {count}");
        assert!(median_us.unwrap() >= 1000.0);
        assert_eq!(transactions(Duration::from_millis(5), || Err(7)), Err(7));
    }
}
