//! Which figures are held against the goals of a scenario.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::alone::Alone;
use super::icount::Machines;
use super::revoke::Late;
use super::row::{Figure, Row};
use super::samples::Samples;
use crate::scenario_file::{FigureGoal as Goal, Ratio, ScenarioFile, Words, filled};
use traffic::statistics::Goal as Bound;
use traffic::statistics::median;

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) samples: Samples,
    pub(super) revoked: Vec<Late>,
    pub(super) revoked_ovs: Vec<Late>,
    pub(super) orphaned: Vec<Late>,
    pub(super) alone: Alone,
    #[serde(default)]
    pub(super) machines: Machines,
}

/// All rows of a scenario, measured or not, in the order of its goals: ratios first.
pub(super) fn rows(found: &Found, file: &ScenarioFile) -> Result<Vec<Row>> {
    let mut rows = ratios(file, &found.samples, &[]);
    let figures = figures(found);
    for goal in &file.figures {
        let it = |figure: &&Figure| (&figure.what, &figure.against) == (&goal.row, &goal.against);
        let figure = figures.iter().find(it).with_context(|| {
            let known: Vec<String> = figures
                .iter()
                .map(|figure| format!("{:?} against {:?}", figure.what, figure.against))
                .collect();
            let Goal { row, against, .. } = goal;
            format!("figures: {row:?} against {against:?}: must be one of {}", known.join("; "))
        })?;
        rows.push(figure.clone().held(goal.goal()?));
    }
    Ok(rows)
}

/// A row for each goal of a path against another.
pub(super) fn ratios(file: &ScenarioFile, samples: &Samples, words: Words<'_>) -> Vec<Row> {
    file.ratios
        .iter()
        .map(|goal| {
            let Ratio { what, load, path, against, at_least, note } = goal;
            let what = filled(what, words);
            let row = Row::new(what, against.label(), Bound::AtLeast(*at_least), "");
            let row = row.pairs(&samples.pairs(load.load(), *path, *against));
            if note.is_empty() { row } else { row.note(note.as_str()) }
        })
        .collect()
}

/// Everything with a goal that is no ratio of slices.
fn figures(found: &Found) -> Vec<Figure> {
    let mut all = found.machines.figures();
    all.extend(alone(&found.alone));
    all.extend(revoked(found));
    all
}

fn alone(alone: &Alone) -> Vec<Figure> {
    let figure = |what: &str, values: &[f64]| {
        Figure::new(format!("program alone, {what}"), "", "ns").median_of(values.to_vec())
    };
    vec![figure("hit TX", &alone.hit_tx), figure("hit RX", &alone.hit_rx), figure("miss", &alone.miss)]
}

/// Streams that were not cached say nothing about the cache: they count as not measured.
fn revoked(found: &Found) -> Vec<Figure> {
    let packets = |late: &[Late]| -> Vec<f64> {
        late.iter().map(|l| u32::try_from(l.packets).map_or(f64::MAX, f64::from)).collect()
    };
    let cached = |late: &[Late]| -> Vec<Late> { late.iter().copied().filter(|l| l.cached).collect() };
    let most = |values: &[f64]| values.iter().copied().reduce(f64::max);
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.0}"));
    let (fast, mut ovs) = (packets(&cached(&found.revoked)), packets(&found.revoked_ovs));
    let of_cached = format!("{} of {} streams were cached", fast.len(), found.revoked.len());
    let note = format!("{of_cached}; OVS alone: {} / {}", shown(median(&mut ovs)), shown(most(&ovs)));
    let what = "policy revoked under 5,000 packets/s, late packets";
    let orphaned = cached(&found.orphaned);
    let last = most(&orphaned.iter().map(|l| l.last_ms).collect::<Vec<_>>());
    let last = last.map_or(String::new(), |ms| format!(", last packet {ms:+.0} ms from then"));
    vec![
        Figure::new(format!("{what}, median"), "", "").median_of(fast.clone()).note(note),
        Figure::new(format!("{what}, most"), "", "").value(most(&fast)),
        Figure::new("user space killed, then flows changed, packets after 2.4 s", "", "")
            .value(most(&packets(&orphaned)))
            .note(format!("{} of {} streams were cached{last}", orphaned.len(), found.orphaned.len())),
    ]
}

#[cfg(test)]
mod tests {
    use traffic::statistics::Verdict;

    use super::*;
    use crate::scenario_file::Run;

    #[test]
    fn what_was_not_measured_says_so() {
        let file = ScenarioFile::of("fastpath", Run::Fastpath).unwrap();
        let rows = rows(&Found::default(), &file).unwrap();
        assert_eq!(rows.len(), file.ratios.len() + file.figures.len());
        assert!(rows.len() > 40, "{}", rows.len());
        assert!(rows.iter().all(|row| row.verdict == Verdict::NotMeasured));
    }

    #[test]
    fn a_goal_for_no_figure_is_an_error_and_every_figure_has_one() {
        let mut file = ScenarioFile::of("fastpath", Run::Fastpath).unwrap();
        assert_eq!(figures(&Found::default()).len(), file.figures.len());
        file.figures[0].row = "program alone, hits".to_owned();
        let error = format!("{:#}", rows(&Found::default(), &file).unwrap_err());
        assert!(error.contains("\"program alone, hits\" against \"ovs\": must be one of"), "{error}");
    }

    #[test]
    fn a_stream_that_was_not_cached_is_no_measurement_of_the_cache() {
        let late = |cached| Late { packets: 3, last_ms: 1.0, before: 3000, cached };
        let figures = |cached| {
            let found =
                Found { revoked: vec![late(cached)], orphaned: vec![late(cached)], ..Found::default() };
            revoked(&found).iter().map(|figure| figure.value).collect::<Vec<_>>()
        };
        assert_eq!(figures(true), [Some(3.0); 3]);
        assert_eq!(figures(false), [None; 3]);
    }
}
