//! How sure a figure of several runs is. Slices that follow each other are alike, and two runs differ by more than their slices know: so
//! runs are drawn again, and in each of them blocks of neighbouring slices (Künsch 1989; Davison and Hinkley 1997, section 3.8).

use super::estimate::{Estimate, SplitMix, interval, median, quick_median};

/// Draws of runs.
const RESAMPLES: usize = 1_000;
/// Blocks into which a run is cut.
const BLOCKS: usize = 10;

impl Estimate {
    /// Estimate of the median of all values of some runs. `None` without any value.
    #[must_use]
    pub fn of_runs(runs: &[Vec<f64>]) -> Option<Self> {
        let runs = filled(runs);
        let middle = middle(&runs)?;
        let mut generator = SplitMix::new();
        let drawn = (0..RESAMPLES).map(|_| quick_median(&mut draw(&runs, &mut generator))).collect();
        Some(estimate(middle, drawn, &[&runs]))
    }

    /// Estimate of the ratio of the medians of some runs and of some others. `None` if a side has no value, or the second a median of 0.
    #[must_use]
    pub fn of_ratio_of_runs(runs: &[Vec<f64>], against: &[Vec<f64>]) -> Option<Self> {
        let (runs, against) = (filled(runs), filled(against));
        let ratio = middle(&runs)? / middle(&against)?;
        let mut generator = SplitMix::new();
        let one = |_| {
            let [mut above, mut below] = [&runs, &against].map(|of| draw(of, &mut generator));
            quick_median(&mut above) / quick_median(&mut below)
        };
        let estimate = estimate(ratio, (0..RESAMPLES).map(one).collect(), &[&runs, &against]);
        [ratio, estimate.low, estimate.high].iter().all(|end| end.is_finite()).then_some(estimate)
    }
}

fn filled(runs: &[Vec<f64>]) -> Vec<&[f64]> {
    runs.iter().map(Vec::as_slice).filter(|run| !run.is_empty()).collect()
}

fn middle(runs: &[&[f64]]) -> Option<f64> {
    median(&mut runs.concat())
}

/// Draws as many runs as there are, each from all of them, and as many values of each, in blocks.
fn draw(runs: &[&[f64]], generator: &mut SplitMix) -> Vec<f64> {
    let mut values = Vec::with_capacity(runs.iter().map(|run| run.len()).sum());
    for _ in runs {
        let run = runs[generator.below(runs.len())];
        let block = (run.len() / BLOCKS).max(1);
        let mut left = run.len();
        while left > 0 {
            let (first, count) = (generator.below(run.len()), block.min(left));
            // Round the end, so that the first and the last are drawn as often as others.
            values.extend(run.iter().cycle().skip(first).take(count));
            left -= count;
        }
    }
    values
}

/// Few runs that are drawn from themselves vary too little, by (n - 1) / n: the interval is widened by the root of it, as a factor, as rates
/// and ratios are above 0.
fn estimate(middle: f64, mut drawn: Vec<f64>, sides: &[&Vec<&[f64]>]) -> Estimate {
    drawn.sort_by(f64::total_cmp);
    let [low, high] = interval(&drawn);
    let fewest = sides.iter().map(|side| side.len()).min().unwrap_or(1);
    // Counts of runs, far below 2^52.
    let wider = if fewest > 1 { (fewest as f64 / (fewest - 1) as f64).sqrt() } else { 1.0 };
    let values = |side: &&Vec<&[f64]>| side.iter().map(|run| run.len()).sum();
    Estimate {
        median: middle,
        low: stretch(middle, low.min(middle), wider),
        high: stretch(middle, high.max(middle), wider),
        values: sides.iter().map(values).min().unwrap_or(0),
    }
}

fn stretch(middle: f64, end: f64, wider: f64) -> f64 {
    if middle > 0.0 && end > 0.0 { middle * (end / middle).powf(wider) } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of slices around a level that drifts, so that neighbours are alike.
    fn run(seed: u64, level: f64) -> Vec<f64> {
        let mut generator = SplitMix(seed);
        let mut drift = 0.0;
        (0..100)
            .map(|_| {
                drift = 0.9 * drift + 0.01 * generator.noise();
                level * (1.0 + drift + 0.01 * generator.noise())
            })
            .collect()
    }

    #[test]
    fn runs_that_differ_make_the_interval_hold_both() {
        let estimate = Estimate::of_runs(&[run(1, 100.0), run(2, 110.0)]).unwrap();
        assert!(estimate.low < 101.0 && estimate.high > 109.0, "{estimate:?}");
        assert_eq!(estimate.values, 200);
        let alike = Estimate::of_runs(&[run(1, 100.0), run(2, 100.0)]).unwrap();
        assert!(alike.high - alike.low < 6.0, "{alike:?}");
    }

    #[test]
    fn an_interval_of_rates_stays_above_nothing() {
        let Estimate { low, high, .. } = Estimate::of_runs(&[run(1, 10.0), run(2, 1000.0)]).unwrap();
        assert!(low > 0.0 && low < 9.0 && high > 1000.0, "{low} {high}");
    }

    #[test]
    fn neighbours_that_are_alike_make_the_interval_wider() {
        let one = run(3, 100.0);
        let (blocks, single) =
            (Estimate::of_runs(std::slice::from_ref(&one)).unwrap(), Estimate::of(&one).unwrap());
        assert!(blocks.high - blocks.low > 1.2 * (single.high - single.low), "{blocks:?} {single:?}");
    }

    #[test]
    fn the_same_machine_is_seldom_held_for_another_one() {
        // Levels of runs that differ by 3 %, as those of a shared machine do.
        let side = |seed: u64| {
            let mut generator = SplitMix(0xabc + seed);
            (0..3).map(|i| run(100 * seed + i, 100.0 * (1.0 + 0.03 * generator.noise()))).collect::<Vec<_>>()
        };
        let wrong = (0..60).filter(|seed| {
            let Estimate { low, high, .. } =
                Estimate::of_ratio_of_runs(&side(2 * seed), &side(2 * seed + 1)).unwrap();
            !(low..=high).contains(&1.0)
        });
        let wrong = wrong.count();
        assert!(wrong <= 6, "{wrong} of 60");
    }

    #[test]
    fn a_slower_one_is_seen() {
        let side = |seed: u64, level| (0..3).map(|i| run(seed + i, level)).collect::<Vec<_>>();
        let estimate = Estimate::of_ratio_of_runs(&side(10, 90.0), &side(20, 100.0)).unwrap();
        assert!(estimate.high < 0.95, "{estimate:?}");
        assert_eq!(Estimate::of_ratio_of_runs(&[], &side(1, 1.0)), None);
        assert_eq!(Estimate::of_ratio_of_runs(&side(1, 1.0), &[vec![]]), None);
        assert_eq!(Estimate::of_ratio_of_runs(&side(1, 1.0), &[vec![0.0]]), None);
    }
}
