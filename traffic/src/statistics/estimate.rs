//! Medians, and how sure they are: a percentile bootstrap with a generator of its own, so that the same values always give
//! the same interval.

use serde::{Deserialize, Serialize};

/// How often values are drawn again.
const RESAMPLES: usize = 2_000;
/// What an interval leaves out on each side.
const TAIL: f64 = 0.025;
/// Where the generator starts.
const SEED: u64 = 0x5eed;

/// A median and the interval in which it lies with a confidence of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of values that it comes from.
    pub values: usize,
}

impl Estimate {
    /// Confidence interval of the median of some values; `None` without any.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let median = median(&mut values.to_vec())?;
        let mut generator = SplitMix::new();
        let mut drawn = vec![0.0; values.len()];
        let mut medians = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            for place in &mut drawn {
                *place = values[generator.below(values.len())];
            }
            medians.push(quick_median(&mut drawn));
        }
        medians.sort_by(f64::total_cmp);
        let [low, high] = interval(&medians);
        Some(Self { median, low, high, values: values.len() })
    }
}

/// The median, and the values sorted; of an even number the mean of the two in the middle.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = values.get(half).copied()?;
    if values.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(values[half - 1], upper)) }
}

/// The median of at least one value, without sorting all of them.
pub(super) fn quick_median(values: &mut [f64]) -> f64 {
    let half = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    let upper = *upper;
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| even);
    lower.map_or(upper, |lower| f64::midpoint(lower, upper))
}

/// What is left of sorted values without the tails.
pub(super) fn interval(sorted: &[f64]) -> [f64; 2] {
    [TAIL, 1.0 - TAIL].map(|part| rank(sorted, part))
}

/// The value below which a part of the sorted ones lies, by the nearest rank.
fn rank(sorted: &[f64], part: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index between 0 and the number of resamples"
    )]
    let at = (part * (sorted.len() - 1) as f64).round() as usize;
    sorted[at]
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to draw with.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The one that every interval is made with.
    pub(crate) fn new() -> Self {
        Self(SEED)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The upper half of a 128-bit product: below the bound, and as even as 64 bits can be.
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SplitMix {
        /// Between 0 and 1.
        fn part(&mut self) -> f64 {
            f64::from(u32::try_from(self.next() >> 32).unwrap()) / 2f64.powi(32)
        }

        /// Roughly normal around 0, with a deviation of 1: a sum of twelve (Irwin–Hall).
        pub(in crate::statistics) fn noise(&mut self) -> f64 {
            (0..12).map(|_| self.part()).sum::<f64>() - 6.0
        }
    }

    /// Rates of two paths, the second 3 % slower, on a machine whose speed changes by two from round to round. Slices of one
    /// round are neighbours: their speed is the same but for 2 % of noise.
    fn machine(seed: u64, rounds: usize) -> (Vec<f64>, Vec<f64>) {
        let mut generator = SplitMix(seed);
        (0..rounds)
            .map(|_| {
                let speed = if generator.part() < 0.5 { 50_000.0 } else { 100_000.0 };
                let mut slice = |of: f64| of * speed * (1.0 + 0.02 * generator.noise());
                (slice(1.0), slice(0.97))
            })
            .unzip()
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&mut []), None);
        assert_eq!(quick_median(&mut [4.0, 1.0, 2.0, 3.0]).to_bits(), 2.5_f64.to_bits());
        assert_eq!(quick_median(&mut [3.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(quick_median(&mut [3.0]).to_bits(), 3.0_f64.to_bits());
    }

    #[test]
    fn nothing_gives_no_estimate_and_equal_values_a_sure_one() {
        assert_eq!(Estimate::of(&[]), None);
        let sure = Estimate { median: 0.9, low: 0.9, high: 0.9, values: 50 };
        assert_eq!(Estimate::of(&[0.9; 50]), Some(sure));
    }

    #[test]
    fn the_same_values_give_the_same_interval() {
        let (a, _) = machine(1, 100);
        assert_eq!(Estimate::of(&a), Estimate::of(&a));
    }

    #[test]
    fn a_paired_median_finds_what_means_of_each_path_miss() {
        let mean =
            |values: &[f64]| values.iter().sum::<f64>() / f64::from(u32::try_from(values.len()).unwrap());
        let far = |ratio: f64| (ratio - 0.97).abs() > 0.015;
        let mut missed = 0;
        for seed in 0..20 {
            let (fast, slow) = machine(seed, 200);
            let ratios: Vec<f64> = slow.iter().zip(&fast).map(|(slow, fast)| slow / fast).collect();
            let paired = Estimate::of(&ratios).unwrap();
            assert!(paired.high < 1.0 && !far(paired.median), "seed {seed}: {paired:?}");
            // One path first and the other later: each has its own share of the slow rounds.
            let (_, later) = machine(seed + 1_000, 200);
            missed += u32::from(far(mean(&later) / mean(&fast)));
        }
        assert!(missed >= 8, "only {missed} of 20 runs without pairs are wrong by half of the difference");
    }

    #[test]
    fn the_interval_covers_the_truth_as_often_as_it_says() {
        let covered = (0..200).filter(|seed| {
            let mut generator = SplitMix(0xc0ffee + seed);
            let values: Vec<f64> = (0..61).map(|_| 0.97 + 0.05 * generator.noise()).collect();
            let Estimate { low, high, .. } = Estimate::of(&values).unwrap();
            (low..=high).contains(&0.97)
        });
        // 95 % of 200 are 190; the deviation of such a count is 3.1.
        let covered = covered.count();
        assert!((180..=199).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn four_times_the_values_halve_the_interval() {
        let width = |count| {
            let mut generator = SplitMix(7);
            let values: Vec<f64> = (0..count).map(|_| 1.0 + 0.1 * generator.noise()).collect();
            let Estimate { low, high, .. } = Estimate::of(&values).unwrap();
            high - low
        };
        let times = width(200) / width(800);
        assert!((1.4..2.8).contains(&times), "{times}");
    }
}
