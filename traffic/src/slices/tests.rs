use super::*;
use crate::statistics::Goal;

/// A path whose speed is that of a machine that changes, times a factor, with some noise and now and then a disturbance.
struct Fake {
    factor: f64,
    state: u64,
    /// How many of ten slices are disturbed, and then run at half the speed.
    disturbed: u64,
    slices: u64,
}

impl Fake {
    fn new(factor: f64, seed: u64, disturbed: u64) -> Self {
        Self { factor, state: seed, disturbed, slices: 0 }
    }

    /// Between -1 and 1 (an LCG's upper bits).
    fn noise(&mut self) -> f64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.state >> 33).unwrap()) / f64::from(1_u32 << 30) - 1.0
    }
}

impl Sliceable for Fake {
    fn slice(&mut self, _: Duration) -> Result<Slice> {
        // The machine is half as fast in every third group of seven rounds.
        let speed = if (self.slices / 7).is_multiple_of(3) { 20_000.0 } else { 40_000.0 };
        let is_disturbed = self.slices % 10 < self.disturbed;
        self.slices += 1;
        let own = if is_disturbed { 0.5 } else { 1.0 };
        let per_second = speed * self.factor * own * (1.0 + 0.03 * self.noise());
        let away = if is_disturbed { 0.4 } else { 0.01 };
        Ok(Slice { per_second, median_us: Some(1e6 / per_second), away })
    }
}

fn ratio(factor: f64, disturbed: u64) -> Pairs {
    let mut lanes = [Fake::new(factor, 1, disturbed), Fake::new(1.0, 99, 0)];
    let series = interleave(&mut lanes, 300, Duration::from_millis(30), |_, _| {}).unwrap();
    Pairs::of(pairs(&series[0], &series[1]))
}

#[test]
fn a_path_against_itself_is_the_same() {
    let pairs = ratio(1.0, 0);
    assert_eq!(Verdict::of_twins(&pairs, 0.01), Verdict::Met, "{pairs:?}");
    assert_eq!(Verdict::of_pairs(Goal::AtLeast(0.95), &pairs), Verdict::Met);
}

#[test]
fn a_path_that_is_a_tenth_slower_is_found() {
    let pairs = ratio(0.9, 0);
    assert_eq!(Verdict::of_twins(&pairs, 0.01), Verdict::Missed, "{pairs:?}");
    assert_eq!(Verdict::of_pairs(Goal::AtLeast(0.95), &pairs), Verdict::Missed);
    let estimate = pairs.estimate.unwrap();
    assert!((estimate.median - 0.9).abs() < 0.01 && estimate.high < 0.95, "{estimate:?}");
    assert!((pairs.by_times.unwrap() - 0.9).abs() < 0.01);
}

#[test]
fn disturbed_slices_are_left_out_and_do_not_change_the_ratio() {
    let pairs = ratio(1.0, 3);
    assert_eq!(pairs.disturbed, 90);
    assert_eq!(Verdict::of_twins(&pairs, 0.01), Verdict::Met, "{pairs:?}");
}

#[test]
fn a_goal_near_the_ratio_has_no_verdict_but_a_number_of_rounds() {
    let mut lanes = [Fake::new(0.951, 1, 0), Fake::new(1.0, 99, 0)];
    let series = interleave(&mut lanes, 40, Duration::from_millis(30), |_, _| {}).unwrap();
    let verdict = Verdict::of_pairs(Goal::AtLeast(0.95), &Pairs::of(pairs(&series[0], &series[1])));
    assert!(matches!(verdict, Verdict::Undecided(_)), "{verdict:?}");
    assert_eq!(Verdict::of_pairs(Goal::AtLeast(0.95), &Pairs::of(pairs(&[], &[]))), Verdict::NotMeasured);
}
