//! Ratios of neighbouring slices: what was measured on two paths in the same round.

use serde::{Deserialize, Serialize};

use super::estimate::{Estimate, median};

/// Two neighbouring slices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Ratio of the rates.
    pub rate: f64,
    /// Ratio of the median times of a transaction, turned round: more is better.
    pub time: Option<f64>,
    /// Whether either slice was disturbed.
    pub is_disturbed: bool,
}

/// Ratios of two series, of slices in the same round of which neither was disturbed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Estimate of the ratio of the rates.
    pub estimate: Option<Estimate>,
    /// Ratio of the median times of a transaction, turned round: more is better.
    pub by_times: Option<f64>,
    /// How many pairs were left out.
    pub disturbed: usize,
}

impl Pairs {
    /// The estimate from pairs; a disturbed pair is counted, and otherwise left out, and so is a ratio that is no number.
    pub fn of(pairs: impl IntoIterator<Item = Pair>) -> Self {
        let (mut rates, mut times, mut disturbed) = (Vec::new(), Vec::new(), 0);
        for pair in pairs {
            if pair.is_disturbed {
                disturbed += 1;
                continue;
            }
            rates.push(pair.rate);
            times.extend(pair.time);
        }
        rates.retain(|ratio| ratio.is_finite());
        let by_times = median(&mut times);
        Self { estimate: Estimate::of(&rates), by_times, disturbed }
    }

    fn used(&self) -> usize {
        self.estimate.map_or(0, |estimate| estimate.values)
    }

    /// Whether both were measured in any round.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.used() + self.disturbed > 0
    }

    /// The part that was left out.
    #[must_use]
    pub fn left_out(&self) -> f64 {
        part(self.disturbed, self.used() + self.disturbed)
    }

    /// Whether more than half were left out: what is left may be of a kind.
    #[must_use]
    pub fn mostly_disturbed(&self) -> bool {
        self.disturbed > self.used()
    }

    /// Rounds that give so many pairs, if as many are disturbed as before.
    #[must_use]
    pub fn rounds_for(&self, pairs: usize) -> usize {
        let used = self.used().max(1);
        (pairs * (used + self.disturbed)).div_ceil(used)
    }
}

/// `some` as a part of `all`, which may be 0.
#[must_use]
pub fn part(some: usize, all: usize) -> f64 {
    // Counts of slices, far below 2^52.
    if all == 0 { 0.0 } else { some as f64 / all as f64 }
}

/// The order of `count` paths in a round: each round begins with another path, and every second one runs the other way round, so
/// that each path comes as often before another as after it.
#[must_use]
pub fn order(count: usize, round: usize) -> Vec<usize> {
    let turned = (0..count).map(|i| (i + round / 2) % count.max(1));
    if round.is_multiple_of(2) { turned.collect() } else { turned.rev().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_every_path_and_begins_elsewhere() {
        for round in 0..20 {
            let mut all = order(5, round);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
        assert_eq!(order(3, 0), [0, 1, 2]);
        assert_eq!(order(3, 1), [2, 1, 0]);
        assert_eq!(order(3, 2), [1, 2, 0]);
        assert_eq!(order(3, 3), [0, 2, 1]);
        assert_eq!(order(0, 7), Vec::<usize>::new());
    }

    #[test]
    fn each_path_comes_as_often_before_another_as_after_it() {
        let before = (0..40)
            .filter(|&round| {
                let at = |path| order(4, round).iter().position(|&i| i == path);
                at(0) < at(2)
            })
            .count();
        assert_eq!(before, 20);
    }
}
