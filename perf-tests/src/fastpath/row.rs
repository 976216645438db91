//! A figure and the goal that it is held against.

use serde::{Deserialize, Serialize};

use traffic::statistics::{Goal, Pairs, Verdict, median};

/// A figure with its goal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Row {
    /// What is measured.
    pub(super) what: String,
    /// Against what.
    pub(super) against: String,
    pub(super) goal: Goal,
    /// Unit of figure and goal; empty for a ratio.
    pub(super) unit: String,
    /// None: not measured.
    pub(super) figure: Option<f64>,
    /// For a ratio of slices the interval of its median, which decides; otherwise the least and the greatest value.
    pub(super) interval: Option<(f64, f64)>,
    /// The part of the pairs of slices that was left out.
    pub(super) left_out: Option<f64>,
    pub(super) verdict: Verdict,
    /// What else to know of it.
    pub(super) note: String,
}

impl Row {
    pub(super) fn new(what: impl Into<String>, against: impl Into<String>, goal: Goal, unit: &str) -> Self {
        Self {
            what: what.into(),
            against: against.into(),
            goal,
            unit: unit.to_owned(),
            figure: None,
            interval: None,
            left_out: None,
            verdict: Verdict::NotMeasured,
            note: String::new(),
        }
    }

    /// The median of some values, which also give the spread.
    pub(super) fn median_of(self, mut values: Vec<f64>) -> Self {
        let figure = median(&mut values);
        let interval = values.first().copied().zip(values.last().copied());
        Self { interval, ..self.figure(figure) }
    }

    pub(super) fn figure(self, figure: Option<f64>) -> Self {
        Self { figure, verdict: Verdict::of_figure(self.goal, figure), ..self }
    }

    /// The median of the ratios of slices.
    pub(super) fn pairs(self, pairs: &Pairs) -> Self {
        let row = Self {
            figure: pairs.estimate.map(|estimate| estimate.median),
            interval: pairs.estimate.map(|estimate| (estimate.low, estimate.high)),
            left_out: pairs.has_any().then(|| pairs.left_out()),
            verdict: Verdict::of_pairs(self.goal, pairs),
            ..self
        };
        match pairs.by_times {
            Some(times) => row.note(format!("by median times {times:.3}")),
            None => row,
        }
    }

    pub(super) fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// By which it is named when it misses.
    pub(super) fn name(&self) -> String {
        if self.against.is_empty() { self.what.clone() } else { format!("{} / {}", self.what, self.against) }
    }
}
