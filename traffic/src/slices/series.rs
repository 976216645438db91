//! What a reader of a result makes of the slices of a path.

use crate::report::PathSeries;
use crate::statistics::Pair;

impl PathSeries {
    /// Ratios to another path of the same run, slice by slice of each round.
    #[must_use]
    pub fn pairs(&self, against: &Self) -> Vec<Pair> {
        super::pairs(&super::read(self), &super::read(against))
    }

    /// Rates of the slices that were not disturbed.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        super::calm(&super::read(self)).map(|slice| slice.per_second).collect()
    }

    /// Median times of a transaction, in microseconds, of the slices that were not disturbed.
    #[must_use]
    pub fn times_us(&self) -> Vec<f64> {
        super::calm(&super::read(self)).filter_map(|slice| slice.median_us).collect()
    }
}
