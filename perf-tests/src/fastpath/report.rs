//! The table, for people: on the terminal, and as Markdown for the documentation.

use std::fmt::Write as _;
use std::io::Write;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::rounds::{Load, PLAN, Path, Samples, shown};
use super::rows::{Found, Goal, Row, median};

/// Under which circumstances it was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Circumstances {
    pub(super) commit: String,
    pub(super) kernel: String,
    pub(super) date: String,
    pub(super) cpus: usize,
    pub(super) cpu: usize,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    /// CPUs that others kept busy just before.
    pub(super) load_before: String,
}

impl Circumstances {
    /// Asks the machine.
    pub(super) fn now(cpu: usize, rounds: usize, seconds: f64) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=10"]),
            kernel: said("uname", &["-r"]),
            date: said("date", &["-u", "+%Y-%m-%d"]),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            cpu,
            rounds,
            seconds,
            load_before: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

fn said(program: &str, args: &[&str]) -> String {
    let mut command: Command = testbed::exec::command(program);
    testbed::exec::output(command.args(args)).map_or("unknown".into(), |text| text.trim().to_owned())
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

    fn spread_text(&self) -> String {
        self.spread.map_or(String::new(), |(low, high)| format!("{} – {}", number(low), number(high)))
    }

    fn verdict(&self) -> &'static str {
        match self.figure {
            None => "not measured",
            Some(_) if self.met() => "met",
            Some(_) => "MISSED",
        }
    }
}

/// Prints all rows; answers with the names of those that miss.
pub(super) fn print(out: &mut impl Write, rows: &[Row]) -> std::io::Result<Vec<String>> {
    writeln!(
        out,
        "{:<60} {:<32} {:>9} {:>9} {:>15}  {:<12} ",
        "what", "against", "goal", "figure", "spread", "verdict"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:<60} {:<32} {:>9} {:>9} {:>15}  {:<12} {}",
            row.what,
            row.against,
            row.goal_text(),
            row.figure_text(),
            row.spread_text(),
            row.verdict(),
            row.note
        )?;
    }
    Ok(rows.iter().filter(|row| !row.met()).map(Row::name).collect())
}

/// The page of the documentation.
pub(super) fn markdown(circumstances: &Circumstances, found: &Found, rows: &[Row]) -> String {
    let Circumstances { commit, kernel, date, cpus, cpu, rounds, seconds, load_before } = circumstances;
    let mut page = format!(
        "# Performance of the fast path\n\n\
         Written by `cargo xtask bench fastpath --write`; `--check` fails on a row that misses its goal. How it is measured:\n\
         [benchmarks.md](benchmarks.md#the-fast-path).\n\n\
         Commit {commit}, Linux {kernel}, {date}; {cpus} CPUs, both ends on CPU {cpu}, {rounds} rounds of {seconds} s a cell, \
         load {load_before} just before. Figures are medians of the ratios within a round, the spread is the least and the greatest of them.\n\n\
         | what | against | goal | figure | spread | | |\n|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let cells = [
            row.what.clone(),
            row.against.clone(),
            row.goal_text(),
            row.figure_text(),
            row.spread_text(),
            row.verdict().into(),
            row.note.clone(),
        ];
        page += &format!("| {} |\n", cells.join(" | "));
    }
    page += "\n## The paths themselves\n\nMedians over the rounds; in brackets the median time of a round trip in microseconds.\n\n";
    page += &paths(&found.samples);
    page += &found.machines.markdown();
    page
}

/// A table of rates by path and load.
fn paths(samples: &Samples) -> String {
    let mut all: Vec<Path> = samples.0.iter().map(|sample| sample.path).collect();
    all.sort();
    all.dedup();
    let mut table = String::from("| path |");
    for (load, _) in PLAN {
        table += &format!(" {} |", load.label().0);
    }
    table += &format!("\n|---|{}\n", "---|".repeat(PLAN.len()));
    for path in all {
        table += &format!("| {} |", path.label());
        for (load, _) in PLAN {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastpath::rows;

    #[test]
    fn every_row_is_in_both_tables_and_those_that_miss_are_named() {
        let found = Found::default();
        let rows = rows::rows(&found);
        let mut out = Vec::new();
        assert_eq!(print(&mut out, &rows).unwrap().len(), rows.len());
        assert_eq!(String::from_utf8(out).unwrap().matches("not measured").count(), rows.len());
        let circumstances = Circumstances::now(1, 7, 1.0);
        let page = markdown(&circumstances, &found, &rows);
        assert_eq!(page.matches("not measured").count(), rows.len());
    }

    #[test]
    fn a_figure_is_not_rounded_over_its_bound() {
        let mut row = rows::rows(&Found::default()).remove(0);
        row.figure = Some(0.9491);
        assert_eq!((row.figure_text().as_str(), row.verdict()), ("0.949", "MISSED"));
    }
}
