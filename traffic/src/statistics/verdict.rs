//! What a figure says about its goal. Four answers: met, missed, no verdict, not measured.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::estimate::Estimate;
use super::pairs::Pairs;

/// Pairs of slices without which an interval says too little.
const FEWEST: usize = 30;
/// More than so many times the rounds that were measured are not worth a guess.
const FAR: f64 = 100.0;

/// A bound on a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The figure must not be below it.
    AtLeast(f64),
    /// The figure must not be above it.
    AtMost(f64),
}

impl Goal {
    fn bound(self) -> f64 {
        match self {
            Self::AtLeast(bound) | Self::AtMost(bound) => bound,
        }
    }

    /// Whether a figure meets the goal; one on the bound does.
    #[must_use]
    pub fn is_met_by(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bound) => figure >= bound,
            Self::AtMost(bound) => figure <= bound,
        }
    }
}

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// The interval lies on both sides of the goal; so many more rounds could be enough. None: more than anybody will wait for.
    Rounds(Option<usize>),
    /// More than half of the pairs were disturbed.
    Disturbed,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The goal is met.
    Met,
    /// The goal is missed.
    Missed,
    /// No verdict.
    Undecided(Doubt),
    /// There is nothing to judge by.
    NotMeasured,
}

impl Verdict {
    /// On ratios of slices: the complete interval must lie on one side of the goal.
    #[must_use]
    pub fn of_pairs(goal: Goal, pairs: &Pairs) -> Self {
        let estimate = match enough(pairs) {
            Ok(estimate) => estimate,
            Err(answer) => return answer,
        };
        match [estimate.low, estimate.high].map(|end| goal.is_met_by(end)) {
            [true, true] => Self::Met,
            [false, false] => Self::Missed,
            _ => Self::Undecided(Doubt::Rounds(more(goal.bound(), estimate).map(|n| pairs.rounds_for(n)))),
        }
    }

    /// On two openings of one path: they are the same if the interval holds 1, or nothing farther from it than `within`; they differ if
    /// all of it lies farther away.
    #[must_use]
    pub fn of_twins(pairs: &Pairs, within: f64) -> Self {
        let estimate = match enough(pairs) {
            Ok(estimate) => estimate,
            Err(answer) => return answer,
        };
        let Estimate { median, low, high, .. } = estimate;
        let (least, most) = (1.0 - within, 1.0 + within);
        if (low..=high).contains(&1.0) || (low >= least && high <= most) {
            Self::Met
        } else if high < least || low > most {
            Self::Missed
        } else {
            let edge = if median < 1.0 { least } else { most };
            Self::Undecided(Doubt::Rounds(more(edge, estimate).map(|n| pairs.rounds_for(n))))
        }
    }

    /// On a figure that counts or sums up, without an interval.
    #[must_use]
    pub fn of_figure(goal: Goal, figure: Option<f64>) -> Self {
        match figure {
            None => Self::NotMeasured,
            Some(figure) if goal.is_met_by(figure) => Self::Met,
            Some(_) => Self::Missed,
        }
    }

    /// The code of a process whose goals have these verdicts: 1 if one is missed or not measured, otherwise 3 if there is none on one.
    #[must_use]
    pub fn exit_code(all: &[Self]) -> ExitCode {
        if all.iter().any(|verdict| matches!(verdict, Self::Missed | Self::NotMeasured)) {
            ExitCode::FAILURE
        } else if all.iter().any(|verdict| matches!(verdict, Self::Undecided(_))) {
            ExitCode::from(3)
        } else {
            ExitCode::SUCCESS
        }
    }

    /// In tables.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Met => "met".into(),
            Self::Missed => "MISSED".into(),
            Self::NotMeasured => "not measured".into(),
            Self::Undecided(Doubt::Disturbed) => "no verdict: disturbed".into(),
            Self::Undecided(Doubt::Rounds(Some(more))) => format!("no verdict: about {more} more rounds"),
            Self::Undecided(Doubt::Rounds(None)) => "no verdict: at the goal".into(),
        }
    }
}

/// The estimate, if there are pairs enough to judge by; otherwise the answer.
fn enough(pairs: &Pairs) -> Result<Estimate, Verdict> {
    match pairs.estimate {
        _ if pairs.mostly_disturbed() => Err(Verdict::Undecided(Doubt::Disturbed)),
        None => Err(Verdict::NotMeasured),
        Some(few) if few.values < FEWEST => {
            Err(Verdict::Undecided(Doubt::Rounds(Some(pairs.rounds_for(FEWEST - few.values)))))
        }
        Some(estimate) => Ok(estimate),
    }
}

/// How many more values the interval needs to leave the bound: its width goes with one over the square root of their number.
fn more(bound: f64, estimate: Estimate) -> Option<usize> {
    let Estimate { median, low, high, values } = estimate;
    let reach = if bound <= median { median - low } else { high - median };
    let times = (reach / (median - bound)).powi(2);
    // At or beyond the bound by a hair: one more round would be enough, but never none.
    let times = times.max(1.0);
    let known = u32::try_from(values).ok().filter(|_| times.is_finite() && times <= FAR)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and at most a hundred times a count"
    )]
    let more = ((times - 1.0) * f64::from(known)).ceil() as usize;
    Some(more.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(median: f64, reach: f64, values: usize, disturbed: usize) -> Pairs {
        let estimate = Estimate { median, low: median - reach, high: median + reach, values };
        Pairs { estimate: Some(estimate), disturbed, ..Pairs::default() }
    }

    #[test]
    fn the_worst_verdict_is_the_code() {
        let of = |all: &[Verdict]| format!("{:?}", Verdict::exit_code(all));
        let undecided = Verdict::Undecided(Doubt::Disturbed);
        assert_eq!(of(&[]), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(of(&[Verdict::Met, undecided]), format!("{:?}", ExitCode::from(3)));
        assert_eq!(of(&[undecided, Verdict::Missed]), format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn the_whole_interval_must_lie_on_one_side() {
        let of = |median, reach| Verdict::of_pairs(Goal::AtLeast(0.95), &pairs(median, reach, 100, 0));
        assert_eq!(of(0.97, 0.01), Verdict::Met);
        assert_eq!(of(0.93, 0.01), Verdict::Missed);
        // Twice as far as the distance: four times as many are needed.
        assert_eq!(of(0.96, 0.02), Verdict::Undecided(Doubt::Rounds(Some(300))));
        assert_eq!(of(0.94, 0.02), Verdict::Undecided(Doubt::Rounds(Some(300))));
        assert_eq!(of(0.95, 0.02), Verdict::Undecided(Doubt::Rounds(None)));
        assert_eq!(Verdict::of_pairs(Goal::AtMost(0.95), &pairs(0.93, 0.01, 100, 0)), Verdict::Met);
    }

    #[test]
    fn rounds_that_will_be_disturbed_are_counted_in() {
        // A third is lost, so of three rounds two help.
        let verdict = Verdict::of_pairs(Goal::AtLeast(0.95), &pairs(0.96, 0.02, 100, 50));
        assert_eq!(verdict, Verdict::Undecided(Doubt::Rounds(Some(450))));
    }

    #[test]
    fn few_or_disturbed_pairs_are_no_verdict() {
        let of =
            |values, disturbed| Verdict::of_pairs(Goal::AtLeast(0.95), &pairs(0.5, 0.01, values, disturbed));
        assert_eq!(of(10, 0), Verdict::Undecided(Doubt::Rounds(Some(20))));
        assert_eq!(of(100, 100), Verdict::Missed);
        assert_eq!(of(100, 101), Verdict::Undecided(Doubt::Disturbed));
        let none = Pairs { disturbed: 7, ..Pairs::default() };
        assert_eq!(Verdict::of_pairs(Goal::AtLeast(0.95), &none), Verdict::Undecided(Doubt::Disturbed));
        assert_eq!(Verdict::of_pairs(Goal::AtLeast(0.95), &Pairs::default()), Verdict::NotMeasured);
    }

    #[test]
    fn twins_are_the_same_around_one_or_near_it() {
        const NEAR: f64 = 0.01;
        let of = |median, reach| Verdict::of_twins(&pairs(median, reach, 100, 0), NEAR);
        assert_eq!(of(1.03, 0.04), Verdict::Met);
        assert_eq!(of(1.005, 0.004), Verdict::Met);
        assert_eq!(of(1.02, 0.004), Verdict::Missed);
        assert_eq!(of(0.985, 0.004), Verdict::Missed);
        // Not 1, but perhaps not farther from it than 1 %.
        assert_eq!(of(0.992, 0.004), Verdict::Undecided(Doubt::Rounds(Some(300))));
        assert_eq!(Verdict::of_twins(&pairs(0.985, 0.004, 100, 0), 0.05), Verdict::Met);
        assert_eq!(
            Verdict::of_twins(&pairs(1.0, 0.1, 9, 0), NEAR),
            Verdict::Undecided(Doubt::Rounds(Some(21)))
        );
        assert_eq!(Verdict::of_twins(&pairs(1.2, 0.1, 90, 100), NEAR), Verdict::Undecided(Doubt::Disturbed));
        assert_eq!(Verdict::of_twins(&Pairs::default(), NEAR), Verdict::NotMeasured);
    }

    #[test]
    fn a_figure_on_its_bound_meets_the_goal() {
        assert_eq!(Verdict::of_figure(Goal::AtLeast(0.95), Some(0.95)), Verdict::Met);
        assert_eq!(Verdict::of_figure(Goal::AtLeast(0.95), Some(0.949)), Verdict::Missed);
        assert_eq!(Verdict::of_figure(Goal::AtMost(5.0), Some(5.0)), Verdict::Met);
        assert_eq!(Verdict::of_figure(Goal::AtMost(5.0), Some(5.1)), Verdict::Missed);
        assert_eq!(Verdict::of_figure(Goal::AtMost(5.0), None), Verdict::NotMeasured);
    }
}
