//! `cargo xtask bench compare A B`: two builds of Slipstream against each other. Each runs a cluster of its own, brought up by its own test bed; the same
//! connections of both take turns, slice by slice.

use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use testbed::cluster::config::Datapath;
use testbed::exec;
use traffic::statistics::{Change, Estimate, Pairs};

use super::cell::Route;
use super::cluster::Cluster;
use super::plan::Load;
use super::report::{Circumstances, percent};
use super::rounds::{self, Settings};
use super::samples::Samples;
use super::{put, ways};
use crate::names::{LoadName, Path};

/// How two builds are compared.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory with the programs of the earlier build, its `testbed` among them.
    #[arg(long)]
    before: PathBuf,
    /// Directory with the programs of the later build.
    #[arg(long)]
    after: PathBuf,
    /// What the builds are called in the document.
    #[arg(long, value_delimiter = ',', num_args = 1, default_values_t = ["before".to_owned(), "after".to_owned()])]
    names: Vec<String>,
    /// Paths to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = PATHS)]
    paths: Vec<Path>,
    /// Loads to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = LOADS)]
    loads: Vec<LoadName>,
    /// Per cent within which the builds are the same.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    within: f64,
    /// Rounds; every path of each build has one slice in each.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Milliseconds of one slice.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=1000))]
    slice_ms: u64,
    /// CPU that both ends stay on.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// Passed to the earlier build's node agents.
    #[arg(long, value_enum, default_value_t)]
    before_datapath: Datapath,
    /// Passed to the later build's node agents.
    #[arg(long, value_enum, default_value_t)]
    after_datapath: Datapath,
    /// Begin of the names of the clusters, which are new ones.
    #[arg(long, default_value = "compare")]
    name: String,
    /// Write all that was measured to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The paths of a cluster.
const PATHS: [Path; 10] = [
    Path::Fast,
    Path::FastSame,
    Path::ClusterIp,
    Path::NodePort,
    Path::NodePortFar,
    Path::Hairpin,
    Path::HostPort,
    Path::Outside,
    Path::HostPod,
    Path::Nodes,
];
/// Loads that are measured unless others are named.
const LOADS: [LoadName; 3] = [LoadName::TcpRr, LoadName::UdpRr, LoadName::Crr];
/// A row is worse.
const WORSE: u8 = 1;
/// None is, but some rows have no verdict. 2 is that of a wrong command line.
const NO_VERDICT: u8 = 3;

/// One path under one load, by both builds.
#[derive(Debug, Serialize)]
struct Row {
    load: Load,
    path: Path,
    /// The later build to the earlier one.
    ratio: Option<Estimate>,
    left_out: f64,
    verdict: Change,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode> {
        ensure!(self.names.len() == 2, "--names wants two, as in `--names v1,v2`, not {:?}", self.names);
        ensure!(self.within > 0.0, "--within {}: must be more than 0", self.within);
        for path in &self.paths {
            ensure!(PATHS.contains(path), "--paths: {:?} is no path of a cluster", path.label());
        }
        let circumstances = Circumstances::now(self.cpu, self.rounds.into(), self.slice_ms);
        let before = up(&self.before, &format!("{}-before", self.name), self.before_datapath)?;
        let after = up(&self.after, &format!("{}-after", self.name), self.after_datapath)?;
        let wanted: Vec<_> = self.loads.iter().map(|load| (load.load(), self.paths.clone())).collect();
        let slice = Duration::from_millis(self.slice_ms);
        let settings = Settings { cpu: self.cpu, rounds: self.rounds.into(), slice };
        let second = routes(&after)?;
        let samples = rounds::run(&wanted, &routes(&before)?, Some(&second), settings)?;
        // Both, whatever becomes of the first.
        let downs = [before.down(), after.down()];
        downs.into_iter().collect::<Result<Vec<()>>>()?;
        let rows = rows(&samples, self.within / 100.0);
        print(&mut std::io::stdout().lock(), &rows)?;
        if let Some(file) = &self.json {
            let all = json!({
                "circumstances": circumstances, "builds": self.names, "within_percent": self.within, "rows": rows,
                "samples": samples,
            });
            put(file, &serde_json::to_string(&all)?)?;
        }
        Ok(code(&rows))
    }
}

/// Brings up a cluster of a build by its own test bed, which knows its programs' flags.
fn up(programs: &FilePath, name: &str, datapath: Datapath) -> Result<Cluster> {
    Cluster::remove(name)?;
    let testbed = programs.join("testbed");
    let mut command = exec::command(&testbed);
    command.args(["--name", name, "up", "--nodes", "2", "--datapath", datapath.as_str()]);
    // As in a cluster outside tests.
    exec::output(command.args(["--verify-interval", "180"]))
        .with_context(|| format!("the cluster of {}", testbed.display()))?;
    Cluster::taken(name)
}

fn routes(cluster: &Cluster) -> Result<Vec<(Path, Route)>> {
    let mut all = vec![(Path::Fast, cluster.across()?), (Path::FastSame, cluster.same_node()?)];
    all.extend(ways::routes(cluster)?);
    Ok(all)
}

fn rows(samples: &Samples, within: f64) -> Vec<Row> {
    let row = |load, path| {
        let pairs: Pairs = samples.twins(load, path);
        let ratio = pairs.estimate;
        let verdict = if pairs.mostly_disturbed() { Change::Undecided } else { Change::of(ratio, within) };
        Row { load, path, ratio, left_out: pairs.left_out(), verdict }
    };
    samples.0.iter().filter(|series| series.twin).map(|series| row(series.load, series.path)).collect()
}

fn print(out: &mut impl Write, rows: &[Row]) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<16} {:<34} {:>12} {:>15} {:>8}  verdict",
        "load", "path", "after/before", "interval", "left out"
    )?;
    for Row { load, path, ratio, left_out, verdict } in rows {
        let (figure, interval) = ratio.map_or_else(
            || ("-".into(), String::new()),
            |e| (format!("{:.3}", e.median), format!("{:.3} – {:.3}", e.low, e.high)),
        );
        let (load, path, left_out) = (load.label().0, path.label(), percent(*left_out));
        writeln!(out, "{load:<16} {path:<34} {figure:>12} {interval:>15} {left_out:>8}  {}", verdict.text())?;
    }
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let [better, same, worse, none] =
        [Change::Better, Change::Same, Change::Worse, Change::Undecided].map(count);
    writeln!(out, "\nbetter: {better}, same: {same}, worse: {worse}, no verdict: {none}")
}

fn code(rows: &[Row]) -> ExitCode {
    let any = |verdict| rows.iter().any(|row| row.verdict == verdict);
    if any(Change::Worse) {
        ExitCode::from(WORSE)
    } else if any(Change::Undecided) {
        ExitCode::from(NO_VERDICT)
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastpath::samples::{Series, Slice};

    #[test]
    fn the_later_build_is_judged_against_the_earlier_by_the_same_rounds() {
        let series = |path, twin, per_second: f64, away| {
            let slice = |round| Slice {
                round,
                per_second: per_second + f64::from(u8::try_from(round % 3).unwrap()),
                median_us: None,
                away,
            };
            let load = LoadName::TcpRr.load();
            Series { load, path, twin, slices: (0..60).map(slice).collect() }
        };
        let samples = Samples(vec![
            series(Path::Fast, false, 1000.0, 0.0),
            series(Path::Fast, true, 1001.0, 0.0),
            series(Path::Outside, false, 1000.0, 0.0),
            series(Path::Outside, true, 900.0, 0.0),
            series(Path::Nodes, false, 1000.0, 0.5),
            series(Path::Nodes, true, 500.0, 0.5),
        ]);
        let rows = rows(&samples, 0.05);
        let verdicts: Vec<Change> = rows.iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, [Change::Same, Change::Worse, Change::Undecided], "{rows:?}");
        let mut out = Vec::new();
        print(&mut out, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("better: 0, same: 1, worse: 1, no verdict: 1\n"), "{text}");
        assert!(text.contains("WORSE") && text.contains("0.900"), "{text}");
        assert_eq!(format!("{:?}", code(&rows)), format!("{:?}", ExitCode::from(WORSE)));
    }
}
