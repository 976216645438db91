//! Measured figures with their bounds.

use std::time::Duration;

use super::controller::load_average;
use crate::harness::Checks;
use testbed::ui::say;

/// Collects figures and prints them together in the end.
#[derive(Debug)]
pub(super) struct Figures {
    /// Whether a figure beyond its bound is a failure.
    judge: bool,
    rows: Vec<[String; 3]>,
}

impl Figures {
    pub(super) fn new(judge: bool) -> Self {
        Self { judge, rows: Vec::new() }
    }

    /// Notes a figure without a bound.
    pub(super) fn note(&mut self, what: &str, value: String) {
        self.rows.push([what.to_owned(), value, String::new()]);
    }

    /// Notes a time.
    pub(super) fn time(&mut self, what: &str, time: Duration) {
        self.note(what, format!("{:.1} s", time.as_secs_f64()));
    }

    /// Notes a figure with a bound, which is a check where figures are judged.
    pub(super) fn at_most(&mut self, checks: &mut Checks, what: &str, value: f64, bound: f64, unit: &str) {
        let shown = format!("{value:.1} {unit}");
        if self.judge {
            let load = format!("{shown}, load average {}", load_average());
            let outcome = if value <= bound { Ok(load) } else { Err(load) };
            checks.check(format_args!("{what} is at most {bound} {unit}"), outcome);
        }
        self.rows.push([what.to_owned(), shown, format!("≤ {bound} {unit}")]);
    }

    /// Prints all of them.
    pub(super) fn print(&self) {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (first, second) = (width(0), width(1));
        let judged = if self.judge { "judged" } else { "not judged (--judge)" };
        say(format_args!("\nfigures; bounds are {judged}"));
        for [what, value, bound] in &self.rows {
            say(format_args!("  {what:<first$}  {value:>second$}  {bound}"));
        }
    }
}

/// The smallest value that so many of a hundred do not exceed.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// In milliseconds.
pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let list: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&list, 50), Duration::from_millis(100));
        assert_eq!(percentile(&list, 99), Duration::from_millis(198));
        assert_eq!(percentile(&list, 100), Duration::from_millis(200));
        assert_eq!(percentile(&list[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn a_bound_is_a_check_only_where_figures_are_judged() {
        let failures = |judge, value| {
            let mut checks = Checks::default();
            Figures::new(judge).at_most(&mut checks, "x", value, 1.0, "s");
            checks.failures()
        };
        assert_eq!(failures(false, 2.0), 0);
        assert_eq!(failures(true, 1.0), 0);
        assert_eq!(failures(true, 2.0), 1);
    }
}
