//! Whether a figure is better than an earlier one.

use serde::{Deserialize, Serialize};

use super::estimate::Estimate;

/// Values of a side without which an interval says too little.
const FEWEST: usize = 30;

/// The answer for a figure of which more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// All of the interval is above what counts as the same.
    Better,
    /// All of it is below.
    Worse,
    /// All of it is within.
    Same,
    /// The interval holds more than one answer, or there are too few values.
    Undecided,
}

impl Change {
    /// Judges the ratio of the later figure to the earlier one. What is within `within` of 1, such as 0.01, is the same.
    #[must_use]
    pub fn of(ratio: Option<Estimate>, within: f64) -> Self {
        let Some(Estimate { low, high, values, .. }) = ratio else { return Self::Undecided };
        if values < FEWEST {
            Self::Undecided
        } else if low > 1.0 + within {
            Self::Better
        } else if high < 1.0 - within {
            Self::Worse
        } else if low >= 1.0 - within && high <= 1.0 + within {
            Self::Same
        } else {
            Self::Undecided
        }
    }

    /// In tables.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Same => "same",
            Self::Undecided => "no verdict",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_interval_must_lie_in_one_answer() {
        let of = |low, high, values| {
            Change::of(Some(Estimate { median: f64::midpoint(low, high), low, high, values }), 0.05)
        };
        assert_eq!(of(1.06, 1.08, 40), Change::Better);
        assert_eq!(of(0.8, 0.94, 40), Change::Worse);
        assert_eq!(of(0.96, 1.04, 40), Change::Same);
        assert_eq!(of(0.94, 1.04, 40), Change::Undecided);
        assert_eq!(of(0.8, 0.9, 29), Change::Undecided);
        assert_eq!(Change::of(None, 0.05), Change::Undecided);
    }
}
