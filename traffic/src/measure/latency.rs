//! Times of transactions in an HDR histogram, and the percentiles of it.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest time that is told apart: a minute, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Significant digits of a time.
const DIGITS: u8 = 3;

/// Percentiles, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// The longest time.
    pub max: f64,
}

/// Times as they are counted.
#[derive(Debug, Clone)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    /// Without any.
    pub(crate) fn new() -> Result<Self> {
        Histogram::new_with_bounds(1, LONGEST, DIGITS).map(Self).context("histogram")
    }

    /// Counts one.
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST).max(1));
    }

    /// Counts those of another.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.0.add(&other.0).context("histograms of two threads")
    }

    /// The percentiles; `None` without any.
    pub(crate) fn latency(&self) -> Option<Latency> {
        let at = |part: f64| self.0.value_at_quantile(part) as f64 / 1e3;
        (!self.0.is_empty()).then(|| Latency {
            mean: self.0.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.0.max() as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let (mut one, mut two) = (Times::new().unwrap(), Times::new().unwrap());
        for micros in 1..=500 {
            one.record(Duration::from_micros(micros));
            two.record(Duration::from_micros(500 + micros));
        }
        one.add(&two).unwrap();
        let latency = one.latency().unwrap();
        for (value, truth) in
            [(latency.p50, 500.0), (latency.p90, 900.0), (latency.p99, 990.0), (latency.max, 1000.0)]
        {
            assert!((value / truth - 1.0).abs() < 0.002, "{value} {truth}");
        }
        assert_eq!(Times::new().unwrap().latency(), None);
        one.record(Duration::from_secs(3600));
        assert!(one.latency().unwrap().max >= 59e6);
    }
}
