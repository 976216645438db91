//! Several paths, interleaved slice by slice, so that a machine whose speed changes is the same for all of them.

mod disturbed;
mod goal;
mod lane;
mod series;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use goal::GoalOf;
pub(crate) use lane::Lane;
pub use lane::SHORTEST;

use crate::client::{Plan, Target};
use crate::report::{PathSeries, Ratio, Sliced};
use crate::statistics::{Pair, Pairs, Verdict, median, order};

/// Time between two lines that say how far it is.
const SAY: Duration = Duration::from_secs(5);

/// A path by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) name: String,
    pub(crate) target: Target,
}

/// One slice.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Slice {
    /// Transactions, or bits.
    pub(crate) per_second: f64,
    /// Median time of a transaction, in microseconds.
    pub(crate) median_us: Option<f64>,
    /// Part of the slice in which an end could have run and did not.
    pub(crate) away: f64,
}

/// Something that can be measured for a slice.
pub(crate) trait Sliceable {
    /// Measures for so long.
    fn slice(&mut self, length: Duration) -> Result<Slice>;
}

/// Runs all rounds: a slice of each path in each.
pub(crate) fn interleave<L: Sliceable>(
    lanes: &mut [L],
    rounds: usize,
    length: Duration,
    mut say: impl FnMut(usize, Duration),
) -> Result<Vec<Vec<Slice>>> {
    let mut series = vec![Vec::with_capacity(rounds); lanes.len()];
    let (start, mut said) = (Instant::now(), Instant::now());
    for round in 0..rounds {
        for at in order(lanes.len(), round) {
            let slice = lanes.get_mut(at).context("a path of the order")?.slice(length)?;
            series.get_mut(at).context("a path of the order")?.push(slice);
        }
        if said.elapsed() >= SAY {
            said = Instant::now();
            let done = u32::try_from(round + 1)?;
            say(round + 1, start.elapsed() / done * u32::try_from(rounds - round - 1)?);
        }
    }
    Ok(series)
}

/// The ratio of two series, slice by slice of each round.
pub(crate) fn pairs(series: &[Slice], against: &[Slice]) -> Vec<Pair> {
    let marks = [disturbed::marks(series), disturbed::marks(against)];
    let pair = |(round, (slice, other)): (usize, (&Slice, &Slice))| Pair {
        rate: slice.per_second / other.per_second,
        time: other.median_us.zip(slice.median_us).map(|(other, ours)| other / ours),
        is_disturbed: marks.iter().any(|marks| marks.get(round) == Some(&true)),
    };
    series.iter().zip(against).enumerate().map(pair).collect()
}

/// Slices that were not disturbed.
pub(crate) fn calm(slices: &[Slice]) -> impl Iterator<Item = Slice> {
    let marks = disturbed::marks(slices);
    slices.iter().copied().zip(marks).filter(|(_, disturbed)| !*disturbed).map(|(slice, _)| slice)
}

/// The slices of a result.
pub(crate) fn read(path: &PathSeries) -> Vec<Slice> {
    let slice = |&(_, per_second, median_us, away): &_| Slice { per_second, median_us, away };
    path.slices.iter().map(slice).collect()
}

/// Measures paths against each other: each goal, or without goals each path against the first.
pub(crate) fn run(
    paths: &[Path],
    lanes: &mut [Lane],
    plan: &Plan,
    rounds: usize,
    length: Duration,
    goals: &[GoalOf],
) -> Result<Sliced> {
    let name = plan.settings.test.name();
    let series = interleave(lanes, rounds, length, |round, left| {
        if plan.says {
            let _ = writeln!(std::io::stderr(), "{name}: round {round}/{rounds}, {} s left", left.as_secs());
        }
    })?;
    let at = |name: &str| {
        let at = paths
            .iter()
            .position(|path| path.name == name)
            .with_context(|| format!("there is no path {name}"))?;
        series.get(at).map(Vec::as_slice).with_context(|| format!("path {name}"))
    };
    let mut ratios = Vec::new();
    for goal in goals {
        let pairs = Pairs::of(pairs(at(&goal.path)?, at(&goal.against)?));
        ratios.push(Ratio {
            path: goal.path.clone(),
            against: goal.against.clone(),
            pairs,
            goal: Some(goal.goal),
            verdict: Some(Verdict::of_pairs(goal.goal, &pairs)),
        });
    }
    if let (true, Some((first, rest))) = (goals.is_empty(), paths.split_first()) {
        for path in rest {
            let (path, against) = (path.name.clone(), first.name.clone());
            let pairs = Pairs::of(pairs(at(&path)?, at(&against)?));
            ratios.push(Ratio { path, against, pairs, goal: None, verdict: None });
        }
    }
    let paths =
        paths.iter().zip(&*lanes).zip(&series).map(|((path, lane), slices)| summary(path, lane, slices));
    Ok(Sliced {
        test: plan.settings.test,
        slice_ms: u64::try_from(length.as_millis())?,
        rounds,
        paths: paths.collect(),
        ratios,
        unreachable: Vec::new(),
    })
}

fn summary(path: &Path, lane: &Lane, slices: &[Slice]) -> PathSeries {
    PathSeries {
        name: path.name.clone(),
        target: format!("{}:{}", path.target.host, path.target.port),
        data_address: lane.data().to_string(),
        per_second: median(&mut calm(slices).map(|slice| slice.per_second).collect::<Vec<_>>()),
        median_us: median(&mut calm(slices).filter_map(|slice| slice.median_us).collect::<Vec<_>>()),
        sent: lane.counted()[0],
        lost: lane.counted()[1],
        disturbed: slices.len() - calm(slices).count(),
        slices: slices
            .iter()
            .enumerate()
            .map(|(round, s)| (round, s.per_second, s.median_us, s.away))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
