//! All paths, interleaved: a load's paths are all open, and take turns slice by slice. Each round has one slice of every path and
//! begins with another one; every second round goes backwards, so that no path always follows the same.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use traffic::statistics::order;

use super::cell::Route;
use super::lane::Lane;
use super::plan::Load;
use super::samples::{Samples, Series};
use crate::names::Path;

/// How it is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// CPU that both ends stay on.
    pub(super) cpu: usize,
    pub(super) rounds: usize,
    /// Length of a slice.
    pub(super) slice: Duration,
}

/// A path that is to be opened.
struct Opening<'a> {
    path: Path,
    /// Whether it is the second time.
    twin: bool,
    route: &'a Route,
}

/// Time between two lines that say how far it is.
const SAY: Duration = Duration::from_secs(5);
/// What a slice takes beyond its length and its warm-up, roughly: commands and clocks; with one-way traffic also what is yet to arrive.
const OVERHEAD: Duration = Duration::from_millis(3);

/// Measures what is wanted and has routes. With `second` each path is opened twice, the second time where that says it leads.
pub(super) fn run(
    wanted: &[(Load, Vec<Path>)],
    routes: &[(Path, Route)],
    second: Option<&[(Path, Route)]>,
    settings: Settings,
) -> Result<Samples> {
    let find = |path: Path, twin: bool| {
        let routes = if twin { second? } else { routes };
        let (_, route) = routes.iter().find(|route| route.0 == path)?;
        Some(Opening { path, twin, route })
    };
    let openings = |path: &Path| [find(*path, false), find(*path, true)].into_iter().flatten();
    let there: Vec<(Load, Vec<Opening<'_>>)> =
        wanted.iter().map(|(load, paths)| (*load, paths.iter().flat_map(openings).collect())).collect();
    let times: Vec<Duration> = there.iter().map(|(_, openings)| expected(openings.len(), settings)).collect();
    let Settings { rounds, slice, .. } = settings;
    let all = minutes(times.iter().sum());
    super::say(&format!("{rounds} rounds with slices of {} ms: about {all}", slice.as_millis()));
    let mut samples = Samples::default();
    for (i, (load, openings)) in there.iter().enumerate() {
        let later = times.iter().skip(i + 1).sum();
        samples.0.extend(load_on(*load, openings, settings, later)?);
    }
    Ok(samples)
}

/// One load on its paths.
fn load_on(load: Load, openings: &[Opening<'_>], settings: Settings, later: Duration) -> Result<Vec<Series>> {
    let Settings { cpu, rounds, slice } = settings;
    let open = |one: &Opening<'_>| Lane::open(load, one.path, one.twin, one.route, cpu);
    let mut lanes = openings.iter().map(open).collect::<Result<Vec<Lane>>>()?;
    let (start, mut said) = (Instant::now(), Instant::now());
    for round in 0..rounds {
        for i in order(lanes.len(), round) {
            lanes.get_mut(i).context("a lane of the order")?.slice(round, slice)?;
        }
        if said.elapsed() >= SAY || round + 1 == rounds {
            said = Instant::now();
            let done = u32::try_from(round + 1)?;
            let left = start.elapsed() / done * u32::try_from(rounds - round - 1)? + later;
            progress(load, &lanes, round + 1, rounds, left);
        }
    }
    Ok(lanes.into_iter().map(|lane| lane.series).collect())
}

/// How long the rounds of one load will take.
fn expected(lanes: usize, settings: Settings) -> Duration {
    let one = settings.slice + settings.slice / 10 + OVERHEAD;
    one * u32::try_from(lanes * settings.rounds).unwrap_or(u32::MAX)
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min", (seconds + 30) / 60) }
}

/// How far it is; the table has standard output to itself.
fn progress(load: Load, lanes: &[Lane], round: usize, rounds: usize, left: Duration) {
    let slices = || lanes.iter().flat_map(|lane| &lane.series.slices);
    let disturbed = slices().filter(|slice| slice.is_disturbed()).count();
    let percent = 100 * disturbed / slices().count().max(1);
    let line = format!(
        "{}: round {round}/{rounds}, {percent} % of the slices disturbed, {} left",
        load.label().0,
        minutes(left)
    );
    // The reader is gone: no reason to stop.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_time_grows_with_rounds_and_paths() {
        let slice = Duration::from_millis(30);
        let settings = Settings { cpu: 1, rounds: 100, slice };
        assert_eq!(expected(10, settings), Duration::from_secs(36));
        assert_eq!(minutes(Duration::from_secs(36)), "36 s");
        assert_eq!(minutes(Duration::from_secs(359)), "6 min");
    }
}
