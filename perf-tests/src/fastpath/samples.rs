//! What was measured: slices of each load on each path, and pairs of them from one round.

use serde::{Deserialize, Serialize};
use traffic::statistics::{Pair, Pairs, part};

use super::plan::Load;
use crate::names::Path;

/// A slice of which others took more than this part is left out. The quiet machine's own timers and kernel threads take
/// some thousandths.
const DISTURBED: f64 = 0.02;

/// One slice. Written as an array: there are thousands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Columns", into = "Columns")]
pub(super) struct Slice {
    /// Number of the round.
    pub(super) round: usize,
    /// Per second: transactions, packets, connections; for a stream bits.
    pub(super) per_second: f64,
    /// Half of the transactions took less than this, in microseconds.
    pub(super) median_us: Option<f64>,
    /// Part of the slice in which the CPU worked for others, or was taken from the machine.
    pub(super) away: f64,
}

type Columns = (usize, f64, Option<f64>, f64);

impl From<Columns> for Slice {
    fn from((round, per_second, median_us, away): Columns) -> Self {
        Self { round, per_second, median_us, away }
    }
}

impl From<Slice> for Columns {
    fn from(slice: Slice) -> Self {
        let to = |digits: f64, value: f64| (value * digits).round() / digits;
        let median_us = slice.median_us.map(|time| to(1e3, time));
        (slice.round, to(10.0, slice.per_second), median_us, to(1e4, slice.away))
    }
}

impl Slice {
    /// Whether there was steal, or a load that is not ours.
    pub(super) fn is_disturbed(&self) -> bool {
        self.away > DISTURBED
    }
}

/// The slices of one load on one opening of a path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Series {
    pub(super) load: Load,
    pub(super) path: Path,
    /// The second opening of the same path.
    #[serde(default)]
    pub(super) twin: bool,
    pub(super) slices: Vec<Slice>,
}

/// Ratios of two series, of slices in the same round of which neither was disturbed.
fn pair(series: &Series, against: &Series) -> Pairs {
    Pairs::of(series.slices.iter().filter_map(|slice| {
        let other = against.slices.iter().find(|other| other.round == slice.round)?;
        Some(Pair {
            rate: slice.per_second / other.per_second,
            time: other.median_us.zip(slice.median_us).map(|(other, ours)| other / ours),
            is_disturbed: slice.is_disturbed() || other.is_disturbed(),
        })
    }))
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Samples(pub(super) Vec<Series>);

impl Samples {
    fn find(&self, load: Load, path: Path, twin: bool) -> Option<&Series> {
        self.0.iter().find(|series| (series.load, series.path, series.twin) == (load, path, twin))
    }

    /// Two paths against each other.
    pub(super) fn pairs(&self, load: Load, path: Path, against: Path) -> Pairs {
        let both = self.find(load, path, false).zip(self.find(load, against, false));
        both.map_or_else(Pairs::default, |(series, against)| pair(series, against))
    }

    /// Two openings of one path against each other.
    pub(super) fn twins(&self, load: Load, path: Path) -> Pairs {
        let both = self.find(load, path, true).zip(self.find(load, path, false));
        both.map_or_else(Pairs::default, |(twin, first)| pair(twin, first))
    }

    /// Rates of one path, disturbed or not.
    pub(super) fn rates(&self, load: Load, path: Path) -> Vec<f64> {
        self.slices(load, path).map(|slice| slice.per_second).collect()
    }

    /// Times of a transaction on one path, in microseconds.
    pub(super) fn times(&self, load: Load, path: Path) -> Vec<f64> {
        self.slices(load, path).filter_map(|slice| slice.median_us).collect()
    }

    fn slices(&self, load: Load, path: Path) -> impl Iterator<Item = &Slice> {
        self.find(load, path, false).into_iter().flat_map(|series| &series.slices)
    }

    /// The part of all slices that was disturbed.
    pub(super) fn disturbed(&self) -> f64 {
        let all = || self.0.iter().flat_map(|series| &series.slices);
        part(all().filter(|slice| slice.is_disturbed()).count(), all().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastpath::load::Kind;

    const RR: Load = Load::One(Kind::TcpRr);

    fn slice(round: usize, per_second: f64, away: f64) -> Slice {
        Slice { round, per_second, median_us: Some(1e6 / per_second), away }
    }

    fn series(path: Path, twin: bool, slices: &[(usize, f64, f64)]) -> Series {
        let slices = slices.iter().map(|&(round, rate, away)| slice(round, rate, away)).collect();
        Series { load: RR, path, twin, slices }
    }

    #[test]
    fn ratios_pair_what_was_measured_in_the_same_round() {
        let samples = Samples(vec![
            series(Path::Fast, false, &[(0, 90.0, 0.0), (1, 180.0, 0.0), (2, 1.0, 0.0)]),
            series(Path::Direct, false, &[(1, 200.0, 0.0), (0, 100.0, 0.0)]),
        ]);
        let pairs = samples.pairs(RR, Path::Fast, Path::Direct);
        assert_eq!(pairs.estimate.map(|e| (e.median, e.values)), Some((0.9, 2)));
        assert_eq!(pairs.by_times, Some(0.9));
        assert_eq!(samples.pairs(Load::One(Kind::UdpRr), Path::Fast, Path::Direct), Pairs::default());
    }

    #[test]
    fn disturbed_slices_are_left_out_and_counted() {
        let samples = Samples(vec![
            series(Path::Fast, false, &[(0, 90.0, 0.0), (1, 10.0, 0.3), (2, 90.0, 0.01), (3, 5.0, 0.5)]),
            series(Path::Direct, false, &[(0, 100.0, 0.0), (1, 100.0, 0.0), (2, 9.0, 0.9), (3, 8.0, 0.1)]),
        ]);
        let pairs = samples.pairs(RR, Path::Fast, Path::Direct);
        assert_eq!(pairs.estimate.map(|e| (e.median, e.values)), Some((0.9, 1)));
        assert!(pairs.mostly_disturbed());
        assert_eq!((pairs.disturbed, pairs.left_out(), samples.disturbed()), (3, 0.75, 0.5));
        assert_eq!(pairs.rounds_for(10), 40);
    }

    #[test]
    fn a_path_that_carries_nothing_gives_no_ratio() {
        let samples = Samples(vec![
            series(Path::Fast, false, &[(0, 90.0, 0.0)]),
            series(Path::Direct, false, &[(0, 0.0, 0.0)]),
        ]);
        assert_eq!(samples.pairs(RR, Path::Fast, Path::Direct).estimate, None);
    }

    #[test]
    fn twins_are_two_openings_of_one_path() {
        let samples = Samples(vec![
            series(Path::Fast, false, &[(0, 100.0, 0.0)]),
            series(Path::Fast, true, &[(0, 101.0, 0.0)]),
        ]);
        let twins = samples.twins(RR, Path::Fast);
        assert_eq!(twins.estimate.map(|e| e.median), Some(1.01));
        assert_eq!(samples.rates(RR, Path::Fast), [100.0]);
    }

    #[test]
    fn slices_are_short_in_json_and_come_back() {
        let one = Slice { round: 3, per_second: 51_234.567, median_us: Some(19.123_45), away: 0.001_23 };
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, "[3,51234.6,19.123,0.0012]");
        let back: Slice = serde_json::from_str(&text).unwrap();
        assert_eq!((back.round, back.median_us), (3, Some(19.123)));
    }
}
