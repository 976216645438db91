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

/// A figure that is no ratio of slices, before a goal is there to hold it against.
#[derive(Debug, Clone)]
pub(super) struct Figure {
    /// What is measured.
    pub(super) what: String,
    /// Against what.
    pub(super) against: String,
    unit: &'static str,
    /// None: not measured.
    pub(super) value: Option<f64>,
    /// The least and the greatest value.
    range: Option<(f64, f64)>,
    note: String,
}

impl Figure {
    pub(super) fn new(what: impl Into<String>, against: &str, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            against: against.to_owned(),
            unit,
            value: None,
            range: None,
            note: String::new(),
        }
    }

    pub(super) fn value(self, value: Option<f64>) -> Self {
        Self { value, ..self }
    }

    /// The median of some values, which also give the range.
    pub(super) fn median_of(self, mut values: Vec<f64>) -> Self {
        let value = median(&mut values);
        Self { value, range: values.first().copied().zip(values.last().copied()), ..self }
    }

    pub(super) fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// The row of the table.
    pub(super) fn held(self, goal: Goal) -> Row {
        let Self { what, against, unit, value, range, note } = self;
        let verdict = Verdict::of_figure(goal, value);
        Row { figure: value, interval: range, verdict, note, ..Row::new(what, against, goal, unit) }
    }
}
