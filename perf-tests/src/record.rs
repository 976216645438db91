//! Samples, their summary, and the table that is printed.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// The machine, and what of the sources was measured on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) commit: String,
    pub(crate) kernel: String,
    pub(crate) date: String,
    pub(crate) cpus: usize,
    /// CPUs that others kept busy just before.
    pub(crate) load_before: String,
}

impl Machine {
    /// Asks it.
    pub(crate) fn now() -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=10"]),
            kernel: said("uname", &["-r"]),
            date: said("date", &["-u", "+%Y-%m-%d"]),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            load_before: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

fn said(program: &str, args: &[&str]) -> String {
    let mut command = testbed::exec::command(program);
    testbed::exec::output(command.args(args)).map_or("unknown".into(), |text| text.trim().to_owned())
}

/// Changes elsewhere in a cluster that were made a second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) pods: f64,
    pub(crate) endpoints: f64,
}

impl Made {
    /// In tables, where it is too little.
    pub(crate) fn text(self, pods: u16, endpoints: u16) -> String {
        let Self { pods: made, endpoints: changed } = self;
        format!(
            "only {made:.1} of {pods} pods and {changed:.1} of {endpoints} endpoint changes a second were made"
        )
    }
}

/// One measured series: equal things measured one after another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    /// What was measured.
    pub name: String,
    /// Unit of the samples, such as `ms`.
    pub unit: String,
    /// The samples in the order they were taken.
    pub samples: Vec<f64>,
    /// Upper bound that the project set itself, and for which figure.
    pub goal: Option<Goal>,
}

/// A bound on one figure of a series.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Goal {
    /// The figure that is bounded.
    pub figure: Figure,
    /// Bound that the figure must stay below, in the series' unit.
    pub below: f64,
}

/// A figure of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Figure {
    Median,
    Max,
}

impl Series {
    /// A series without samples.
    pub(crate) fn new(name: impl Into<String>, unit: &str) -> Self {
        Self { name: name.into(), unit: unit.to_owned(), samples: Vec::new(), goal: None }
    }

    /// The `q`-quantile (0 to 1) by the nearest rank, or `None` without samples.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // The index lies between 0 and `last` by construction, and sample counts are far below 2^52.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index between 0 and the number of samples"
        )]
        let at = (q * last as f64).round() as usize;
        sorted.get(at.min(last)).copied()
    }

    fn figure(&self, figure: Figure) -> Option<f64> {
        self.quantile(match figure {
            Figure::Median => 0.5,
            Figure::Max => 1.0,
        })
    }

    /// Whether the goal is met; `None` without a goal. A series without samples misses its goal.
    pub(crate) fn met(&self) -> Option<bool> {
        self.goal.map(|goal| self.figure(goal.figure).is_some_and(|value| value < goal.below))
    }
}

/// Prints the table; answers with the names of the series that miss their goal.
pub(crate) fn print(out: &mut impl Write, series: &[Series]) -> std::io::Result<Vec<String>> {
    let mut missed = Vec::new();
    writeln!(out, "{:<58} {:>5} {:>9} {:>9} {:>9}  goal", "series", "n", "median", "p90", "max")?;
    for s in series {
        let cell = |q| s.quantile(q).map_or("-".to_owned(), |v| format!("{v:.2}"));
        let goal = match s.goal {
            None => String::new(),
            Some(goal) => {
                let met = s.met() == Some(true);
                if !met {
                    missed.push(s.name.clone());
                }
                let figure = if goal.figure == Figure::Median { "median" } else { "max" };
                format!("{figure} < {} {}", goal.below, if met { "met" } else { "MISSED" })
            }
        };
        let name = format!("{} [{}]", s.name, s.unit);
        writeln!(
            out,
            "{name:<58} {:>5} {:>9} {:>9} {:>9}  {goal}",
            s.samples.len(),
            cell(0.5),
            cell(0.9),
            cell(1.0)
        )?;
    }
    Ok(missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_take_the_nearest_rank() {
        let mut s = Series::new("x", "ms");
        assert_eq!(s.quantile(0.5), None);
        s.samples = vec![3.0, 1.0, 2.0];
        assert_eq!(s.quantile(0.5), Some(2.0));
        assert_eq!(s.quantile(1.0), Some(3.0));
    }

    #[test]
    fn a_series_without_samples_misses_its_goal() {
        let goal = Some(Goal { figure: Figure::Median, below: 5.0 });
        let s = Series { goal, ..Series::new("x", "ms") };
        assert_eq!(s.met(), Some(false));
        let mut out = Vec::new();
        assert_eq!(print(&mut out, &[s]).unwrap(), ["x"]);
        assert!(String::from_utf8(out).unwrap().contains("MISSED"));
    }
}
