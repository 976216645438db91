//! A control: each path is opened twice and held against itself, by the same rounds, pairs and intervals. All must be the same.

use std::io::Write;

use super::report::percent;
use super::samples::Samples;
use super::tally::Tally;
use traffic::statistics::Pairs;
use traffic::statistics::Verdict;

/// Prints a line for each load and path; returns those that differ, or for which there is no verdict. What is nearer to 1 than `within` is the
/// same.
pub(super) fn print(out: &mut impl Write, samples: &Samples, within: f64) -> std::io::Result<Tally> {
    let mut tally = Tally::default();
    writeln!(
        out,
        "{:<26} {:<32} {:>9} {:>15} {:>8}  verdict",
        "load", "path against itself", "ratio", "interval", "left out"
    )?;
    for series in samples.0.iter().filter(|series| series.twin) {
        let pairs = samples.twins(series.load, series.path);
        let verdict = Verdict::of_twins(&pairs, within);
        let (load, path) = (series.load.label().0, series.path.label());
        tally.add(format!("{load} / {path}"), verdict);
        let (ratio, interval) = texts(&pairs);
        let left_out = percent(pairs.left_out());
        let word = match verdict {
            Verdict::Met => "same".to_owned(),
            Verdict::Missed => "DIFFERS".to_owned(),
            other => other.text(),
        };
        writeln!(out, "{load:<26} {path:<32} {ratio:>9} {interval:>15} {left_out:>8}  {word}")?;
    }
    Ok(tally)
}

fn texts(pairs: &Pairs) -> (String, String) {
    pairs.estimate.map_or_else(
        || ("-".into(), String::new()),
        |e| (format!("{:.3}", e.median), format!("{:.3} – {:.3}", e.low, e.high)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastpath::load::Kind;
    use crate::fastpath::plan::Load;
    use crate::fastpath::samples::{Series, Slice};
    use crate::names::Path;

    fn series(twin: bool, path: Path, per_second: f64) -> Series {
        // Ratios are not all equal, as an interval of nothing would never hold 1.
        let rate = |round: usize| if twin && round.is_multiple_of(2) { 1.001 } else { 1.0 } * per_second;
        let slice = |round| Slice { round, per_second: rate(round), median_us: None, away: 0.0 };
        Series { load: Load::One(Kind::TcpRr), path, twin, slices: (0..60).map(slice).collect() }
    }

    #[test]
    fn a_path_that_is_slower_the_second_time_differs() {
        let samples = Samples(vec![
            series(false, Path::Veth, 100.0),
            series(true, Path::Veth, 100.0),
            series(false, Path::Host, 100.0),
            series(true, Path::Host, 97.0),
        ]);
        let mut out = Vec::new();
        let tally = print(&mut out, &samples, 0.01).unwrap();
        assert_eq!(tally.missed, ["TCP_RR/s / host"]);
        let text = String::from_utf8(out).unwrap();
        assert_eq!((text.matches(" same\n").count(), text.matches(" DIFFERS\n").count()), (1, 1), "{text}");
    }
}
