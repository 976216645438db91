//! Two runs: better, worse, the same or no verdict, row by row. Pure.

use std::fmt::Write;

use traffic::report::PathSeries;
use traffic::statistics::{Change, Estimate};

use crate::document::{Document, Row};
use crate::report::{figure, rate};
use crate::rows;

/// What was found.
pub(crate) struct Compared {
    pub(crate) text: String,
    changes: Vec<Change>,
}

impl Compared {
    pub(crate) fn has_worse(&self) -> bool {
        self.changes.contains(&Change::Worse)
    }
}

/// Compares runs. What is within `within` of 1 is the same.
pub(crate) fn compare(before: &Document, after: &Document, within: f64) -> Compared {
    let mut text = String::new();
    for line in circumstances(before, after) {
        let _ = writeln!(text, "differs: {line}");
    }
    let _ = writeln!(
        text,
        "{:<11} {:<20} {:>16} {:>16}  {:<36} relative to its baseline",
        "test", "path", "before", "after", "ratio (95 %)"
    );
    let mut lines = Vec::new();
    for row in &after.rows {
        let find = |old: &&Row| old.name == row.name && old.test == row.test;
        let Some(old) = before.rows.iter().find(find) else {
            let _ = writeln!(text, "{:<11} {:<20} only in the second", row.test.name(), row.name);
            continue;
        };
        let change = judge(rates(old).as_slice(), rates(row).as_slice(), within);
        let relative = ratios(before, old).zip(ratios(after, row));
        let relative = relative.map(|(old, new)| judge(&old, &new, within));
        let mut line = format!("{:<11} {:<20} ", row.test.name(), row.name);
        let _ = write!(line, "{:>16} {:>16}  ", cell(old), cell(row));
        let _ = write!(line, "{:<36} ", answer(change));
        line += &relative.map_or_else(|| "it is one".to_owned(), answer);
        lines.push((change.0, line));
    }
    // What is worse first.
    lines.sort_by_key(|(change, _)| match change {
        Change::Worse => 0,
        Change::Undecided => 1,
        Change::Better => 2,
        Change::Same => 3,
    });
    for (_, line) in &lines {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let is_gone = |old: &&Row| !after.rows.iter().any(|row| row.name == old.name && row.test == old.test);
    for old in before.rows.iter().filter(is_gone) {
        let _ = writeln!(text, "{:<11} {:<20} only in the first", old.test.name(), old.name);
    }
    if before.method.passes < 2 || after.method.passes < 2 {
        let _ = writeln!(
            text,
            "no verdict on anything: one pass cannot tell how far passes differ; --passes 2 or more"
        );
    }
    Compared { text, changes: lines.into_iter().map(|(change, _)| change).collect() }
}

fn rates(row: &Row) -> Vec<Vec<f64>> {
    row.passes.iter().map(PathSeries::rates).collect()
}

/// Ratios to the baseline, pass by pass.
fn ratios(document: &Document, row: &Row) -> Option<Vec<Vec<f64>>> {
    let name = &row.against.as_ref()?.name;
    let base = document.rows.iter().find(|other| other.name == *name && other.test == row.test)?;
    Some(row.passes.iter().zip(&base.passes).map(|(ours, base)| rows::ratios(&ours.pairs(base))).collect())
}

fn judge(before: &[Vec<f64>], after: &[Vec<f64>], within: f64) -> (Change, Option<Estimate>) {
    let ratio = Estimate::of_ratio_of_runs(after, before);
    // One pass says nothing about the next one.
    let enough = before.len() >= 2 && after.len() >= 2;
    (if enough { Change::of(ratio, within) } else { Change::Undecided }, ratio)
}

fn cell(row: &Row) -> String {
    row.per_second.map_or_else(|| "-".to_owned(), |estimate| rate(row.test, estimate.median))
}

fn answer((change, ratio): (Change, Option<Estimate>)) -> String {
    format!("{}  {}", figure(ratio), change.text())
}

/// A circumstance: its name, and what a run says of it.
type Fact = (&'static str, fn(&Document) -> String);

/// What makes the two runs hard to compare.
fn circumstances(before: &Document, after: &Document) -> Vec<String> {
    let kernels = |document: &Document| {
        document
            .cluster
            .measured
            .iter()
            .map(|node| format!("{} {}", node.name, node.kernel))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let facts: [Fact; 6] = [
        ("version of the tool", |d| d.version.clone()),
        ("Kubernetes", |d| d.cluster.kubernetes.clone()),
        ("plugin", |d| d.cluster.plugin.clone()),
        ("evidence", |d| d.cluster.evidence.join("; ")),
        ("slices", |d| {
            format!("{} passes, {} rounds, {} ms", d.method.passes, d.method.rounds, d.method.slice_ms)
        }),
        ("processor", |d| d.cluster.client.as_ref().map_or_else(String::new, |host| host.cpu_model.clone())),
    ];
    let differing =
        |name: &str, old: String, new: String| (old != new).then(|| format!("{name}: {old} -> {new}"));
    let facts = facts.iter().filter_map(|(name, of)| differing(name, of(before), of(after)));
    differing("nodes and kernels", kernels(before), kernels(after)).into_iter().chain(facts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Path;
    use crate::report::tests::document;
    use crate::rows::tests::line;

    fn run(rates: &[f64]) -> Document {
        let lines: Vec<_> = rates
            .iter()
            .map(|rate| line("tcp-rr", &[("pod-ip", 1000.0), ("cluster-ip", *rate)], &[]))
            .collect();
        document(&lines.join("\n"), &[Path::PodIp, Path::ClusterIp], &[])
    }

    fn changes(before: &[f64], after: &[f64]) -> Vec<Change> {
        compare(&run(before), &run(after), 0.05).changes
    }

    #[test]
    fn better_worse_and_the_same_are_told_apart_and_the_worse_comes_first() {
        let steady = [1000.0, 1005.0, 1002.0];
        assert_eq!(changes(&steady, &steady), [Change::Same, Change::Same]);
        assert_eq!(changes(&steady, &[850.0, 860.0, 855.0]), [Change::Worse, Change::Same]);
        assert_eq!(changes(&steady, &[1150.0, 1160.0, 1155.0]), [Change::Better, Change::Same]);
        let text = compare(&run(&steady), &run(&[850.0, 860.0, 855.0]), 0.05).text;
        let worse = text.find("WORSE").unwrap();
        assert!(worse < text.find("same").unwrap(), "{text}");
    }

    #[test]
    fn runs_whose_passes_differ_as_much_as_the_runs_have_no_verdict() {
        assert_eq!(changes(&[1000.0, 900.0], &[930.0, 1010.0])[0], Change::Undecided);
        assert_eq!(changes(&[1000.0], &[500.0]), [Change::Undecided, Change::Undecided]);
        assert!(compare(&run(&[1000.0]), &run(&[500.0]), 0.05).text.contains("--passes 2 or more"));
    }

    #[test]
    fn other_circumstances_are_said() {
        let (one, mut two) = (run(&[1.0, 1.0]), run(&[1.0, 1.0]));
        two.cluster.kubernetes = "v9".into();
        assert!(compare(&one, &two, 0.05).text.contains("differs: Kubernetes: v1 -> v9"));
    }
}
