//! The table, for people: on the terminal, and as Markdown for the documentation.

use std::fmt::Write as _;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::plan::Load;
use super::row::Row;
use super::rows::Found;
use super::samples::Samples;
use super::tally::Tally;
use crate::names::Path;
use crate::record::Machine;
use traffic::statistics::Goal;
use traffic::statistics::median;

/// Under which circumstances rounds were measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Circumstances {
    #[serde(flatten)]
    pub(super) machine: Machine,
    pub(super) cpu: usize,
    pub(super) rounds: usize,
    pub(super) slice_ms: u64,
}

impl Circumstances {
    /// Asks the machine.
    pub(super) fn now(cpu: usize, rounds: usize, slice_ms: u64) -> Self {
        Self { machine: Machine::now(), cpu, rounds, slice_ms }
    }
}

fn number(value: f64) -> String {
    if value.abs() < 10.0 && value.fract() != 0.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

impl Row {
    fn goal_text(&self) -> String {
        let (sign, bound) = match self.goal {
            Goal::AtLeast(bound) => ('≥', bound),
            Goal::AtMost(bound) => ('≤', bound),
        };
        format!("{sign} {}{}", number(bound), self.suffix())
    }

    fn suffix(&self) -> String {
        if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) }
    }

    fn figure_text(&self) -> String {
        // Not rounded over its bound.
        self.figure.map_or("-".into(), |figure| match figure {
            whole if whole.fract() == 0.0 => number(whole),
            large if large >= 10.0 => format!("{large:.1}"),
            small => format!("{small:.3}"),
        })
    }

    fn interval_text(&self) -> String {
        let Some((low, high)) = self.interval else { return String::new() };
        match self.left_out {
            Some(_) => format!("{low:.3} – {high:.3}"),
            None => format!("{} – {}", number(low), number(high)),
        }
    }

    fn left_out_text(&self) -> String {
        self.left_out.map_or(String::new(), percent)
    }
}

/// A part as a percentage.
pub(super) fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// Prints all rows; answers with the names of those that do not meet their goal.
pub(super) fn print(out: &mut impl Write, rows: &[Row]) -> std::io::Result<Tally> {
    let mut tally = Tally::default();
    writeln!(
        out,
        "{:<60} {:<32} {:>9} {:>9} {:>15} {:>8}  {:<34} ",
        "what", "against", "goal", "figure", "interval", "left out", "verdict"
    )?;
    for row in rows {
        tally.add(row.name(), row.verdict);
        writeln!(
            out,
            "{:<60} {:<32} {:>9} {:>9} {:>15} {:>8}  {:<34} {}",
            row.what,
            row.against,
            row.goal_text(),
            row.figure_text(),
            row.interval_text(),
            row.left_out_text(),
            row.verdict.text(),
            row.note
        )?;
    }
    Ok(tally)
}

/// Prints the rate of each path under each load, and its ratio to the load's first path.
pub(super) fn print_paths(out: &mut impl Write, samples: &Samples) -> std::io::Result<()> {
    let mut first: Option<(Load, Path)> = None;
    for series in samples.0.iter().filter(|series| !series.twin) {
        let (load, path) = (series.load, series.path);
        let base = match first {
            Some((of, base)) if of == load => base,
            _ => {
                writeln!(
                    out,
                    "\n{:<60} {:>20} {:>9} {:>15} {:>8}",
                    load.label().0,
                    "rate",
                    "ratio",
                    "interval",
                    "left out"
                )?;
                first = Some((load, path));
                path
            }
        };
        write!(out, "{:<60} {:>20}", path.label(), cell(samples, load, path))?;
        let pairs = samples.pairs(load, path, base);
        match pairs.estimate.filter(|_| path != base) {
            Some(e) => writeln!(
                out,
                " {:>9.3} {:>15} {:>8}",
                e.median,
                format!("{:.3} – {:.3}", e.low, e.high),
                percent(pairs.left_out())
            )?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// The page of the documentation.
pub(super) fn markdown(circumstances: &Circumstances, found: &Found, rows: &[Row]) -> String {
    let Circumstances { machine, cpu, rounds, slice_ms } = circumstances;
    let Machine { commit, kernel, date, cpus, load_before } = machine;
    let disturbed = percent(found.samples.disturbed());
    let mut page = format!(
        "# Performance of the fast path\n\n\
         Written by `cargo xtask bench fastpath --write`; `--check` fails on a row that misses its goal. How it is measured:\n\
         [benchmarks.md](benchmarks.md#the-fast-path).\n\n\
         Commit {commit}, Linux {kernel}, {date}; {cpus} CPUs, both ends on CPU {cpu}, {rounds} rounds of slices of {slice_ms} ms, \
         load {load_before} just before, {disturbed} of the slices disturbed by other processes or steal. A ratio is the median of \
         those of neighbouring slices, with its 95 % interval (bootstrap), which must lie on one side of the goal; pairs with a \
         disturbed slice are left out. Other figures show the least and the greatest value.\n\n\
         | what | against | goal | figure | interval | left out | | |\n|---|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let cells = [
            row.what.clone(),
            row.against.clone(),
            row.goal_text(),
            row.figure_text(),
            row.interval_text(),
            row.left_out_text(),
            row.verdict.text(),
            row.note.clone(),
        ];
        page += &format!("| {} |\n", cells.join(" | "));
    }
    page += "\n## The paths themselves\n\nMedians over all slices; in brackets the median time of a transaction in microseconds.\n\n";
    page += &paths(&found.samples);
    page += &found.machines.markdown();
    page
}

/// A table of rates by path and load.
fn paths(samples: &Samples) -> String {
    let mut all: Vec<Path> = samples.0.iter().map(|series| series.path).collect();
    all.sort();
    all.dedup();
    let mut loads: Vec<Load> = Vec::new();
    for series in &samples.0 {
        if !loads.contains(&series.load) {
            loads.push(series.load);
        }
    }
    let mut table = String::from("| path |");
    for load in &loads {
        table += &format!(" {} |", load.label().0);
    }
    table += &format!("\n|---|{}\n", "---|".repeat(loads.len()));
    for path in all {
        table += &format!("| {} |", path.label());
        for load in &loads {
            table += &format!(" {} |", cell(samples, *load, path));
        }
        table.push('\n');
    }
    table
}

fn cell(samples: &Samples, load: Load, path: Path) -> String {
    let Some(rate) = median(&mut samples.rates(load, path)) else { return String::new() };
    let mut text = shown(rate / load.label().1);
    if let Some(time) = median(&mut samples.times(load, path)) {
        // Writing to a string cannot fail.
        let _ = write!(text, " ({time:.1})");
    }
    text
}

/// A rate, with decimals where they say something.
fn shown(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.2}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastpath::row::Figure;
    use crate::fastpath::rows;
    use crate::scenario_file::{Run, ScenarioFile};

    fn scenario() -> ScenarioFile {
        ScenarioFile::of("fastpath", Run::Fastpath).unwrap()
    }

    #[test]
    fn every_row_is_in_both_tables_and_those_that_miss_are_named() {
        let found = Found::default();
        let rows = rows::rows(&found, &scenario()).unwrap();
        let mut out = Vec::new();
        assert_eq!(print(&mut out, &rows).unwrap().not_measured.len(), rows.len());
        assert_eq!(String::from_utf8(out).unwrap().matches("not measured").count(), rows.len());
        let circumstances = Circumstances::now(1, 300, 30);
        let page = markdown(&circumstances, &found, &rows);
        assert_eq!(page.matches("not measured").count(), rows.len());
    }

    #[test]
    fn a_figure_is_not_rounded_over_its_bound() {
        let row = Figure::new("ratio", "", "").value(Some(0.9491)).held(Goal::AtLeast(0.95));
        assert_eq!((row.figure_text(), row.verdict.text()), ("0.949".into(), "MISSED".into()));
    }
}
