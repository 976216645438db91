//! `cargo xtask bench fastpath`: the fast path against everything that it is held against, in one run.
//!
//! [`scene`] brings up the paths, by [`worlds`], [`cluster`] and its [`ways`]; [`plan`] says which load of [`load`] runs on which; [`rounds`] opens
//! them as [`lane`]s and measures slice by slice into [`samples`]. [`stats`] makes medians and intervals of them, [`verdict`]
//! answers. [`revoke`] looks for packets that come too late, [`alone`] measures the programs by themselves, [`icount`] reads what
//! was counted in emulated machines. [`rows`] holds the goals and [`report`] writes it down; [`itself`] is a control.

mod alone;
mod cell;
mod churn;
pub(crate) mod cluster;
mod direct;
mod icount;
mod itself;
mod lane;
mod load;
mod place;
mod plan;
mod policies;
mod proxy;
mod report;
mod revoke;
mod rounds;
mod row;
mod rows;
mod samples;
mod scale;
mod scene;
mod services;
mod tally;
mod versions;
mod ways;
mod worlds;

use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::json;

use crate::names::{LoadName, Path};
use crate::scenario_file::{Run as Command, ScenarioFile};
use cluster::Sabotage;
use plan::Load;
use rounds::Settings;
use rows::Found;
use scene::{Clusters, Scene};
use tally::Tally;

pub(crate) use alone::run as alone;
pub(crate) use churn::Args as ChurnArgs;
pub(crate) use direct::{Delivery, OBJECT, keep as keep_direct};
pub(crate) use load::Args as LoadArgs;
pub(crate) use policies::Args as PolicyArgs;
pub(crate) use services::Args as ServiceArgs;
pub(crate) use versions::Args as VersionsArgs;

/// Where `--write` puts the page.
const PAGE: &str = "docs/performance.md";

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Amount {
    rounds: usize,
    revocations: u16,
    /// How many of [`KILLS`].
    kills: usize,
}

const LONG: Amount = Amount { rounds: 300, revocations: 20, kills: KILLS.len() };
const QUICK: Amount = Amount { rounds: 80, revocations: 3, kills: 1 };
/// Whose flows are changed when user space was killed, and by which port the stream goes.
const KILLS: [(&str, u16); 4] = [("n2", 7401), ("n1", 7402), ("n2", 7403), ("n1", 7404)];

/// How the fast path is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Exit with 1 and name the rows when a goal is missed or a row was not measured; with 3 when only verdicts are missing.
    #[arg(long)]
    check: bool,
    /// Write the tables to docs/performance.md.
    #[arg(long)]
    write: bool,
    /// Everything in five minutes on two processors, with wider intervals.
    #[arg(long, conflicts_with_all = ["write", "kept"])]
    quick: bool,
    /// Rounds; every path has one slice in each. 300, with --quick 80.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Milliseconds of one slice. Ratios of shorter ones differ: caches are cold at the beginning of each.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=1000))]
    slice_ms: u64,
    /// Paths to measure, each under every load, instead of those of the goals; rows of others are not measured.
    #[arg(long, value_enum, value_delimiter = ',')]
    paths: Vec<Path>,
    /// Loads to measure, instead of all; rows of the others are not measured.
    #[arg(long, value_enum, value_delimiter = ',')]
    loads: Vec<LoadName>,
    /// What is measured and its goals: a scenario of `cargo xtask bench scenario`, or a file.
    #[arg(long, default_value = "fastpath", value_name = "NAME|FILE")]
    scenario: String,
    /// A control: open each path twice and hold it against itself; all must be the same.
    #[arg(long, conflicts_with_all = ["only", "sabotage", "write", "kept"])]
    against_itself: bool,
    /// Per cent within which a path is the same as itself.
    #[arg(long, default_value_t = 1.0, requires = "against_itself", value_name = "PERCENT")]
    within: f64,
    /// CPU that both ends stay on.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// How often a policy is revoked, with eBPF and with OVS. 20, with --quick 3.
    #[arg(long)]
    revocations: Option<u16>,
    /// Parts to measure, instead of all; rows of the others are not measured.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    only: Vec<Part>,
    /// Begin of the clusters' names.
    #[arg(long, default_value = "fastpath")]
    name: String,
    /// Use the running clusters NAME-ebpf and NAME-ovs, and leave them running.
    #[arg(long)]
    there: bool,
    /// A control: the agents with eBPF do something wrong, and the rows about it must miss.
    #[arg(long, value_enum, conflicts_with_all = ["there", "write", "kept"])]
    sabotage: Option<Sabotage>,
    /// Measure nothing: take the figures of the last run from --out, and the counts of emulated machines as they are now.
    #[arg(long, conflicts_with_all = ["there", "only", "paths", "loads"])]
    kept: bool,
    /// Directory for the samples, and with the counts of emulated machines.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All paths in rounds.
    Rounds,
    /// The programs by themselves.
    Alone,
    /// A policy revoked under load.
    Revoked,
    /// User space killed, then the flows changed.
    Killed,
}

impl Part {
    const ALL: [Self; 4] = [Self::Alone, Self::Rounds, Self::Revoked, Self::Killed];
}

/// One run: what was measured and when.
#[derive(Debug, Deserialize)]
struct Run {
    circumstances: report::Circumstances,
    found: Found,
}

impl Run {
    /// Reads what [`Args::run`] has left.
    fn read(file: &FilePath) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("{}: a run without --kept leaves it", file.display()))?;
        let mut all: serde_json::Value =
            serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        // Counted again from the files of the machines, whose format may differ.
        if let Some(found) = all["found"].as_object_mut() {
            found.remove("machines");
        }
        serde_json::from_value(all).with_context(|| file.display().to_string())
    }
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let scenario = ScenarioFile::of(&self.scenario, Command::Fastpath)?;
        scenario
            .check_paths(Path::value_variants(), LoadName::value_variants())
            .with_context(|| format!("scenario {}", self.scenario))?;
        ensure!(
            !self.write || self.scenario == "fastpath",
            "--write: {PAGE} is about the scenario fastpath, not about {}",
            self.scenario
        );
        let tally = if self.against_itself {
            self.hold_against_itself(&scenario)?
        } else {
            self.hold_against_goals(&scenario)?
        };
        let code = tally.code();
        if self.check && code != 0 {
            // An error of anyhow would show where in the program it was raised.
            std::process::exit(code);
        }
        Ok(())
    }

    /// All rows, with their goals.
    fn hold_against_goals(&self, scenario: &ScenarioFile) -> Result<Tally> {
        // A figure that goals name and that is none is an error before anything is measured.
        rows::rows(&Found::default(), scenario).with_context(|| format!("scenario {}", self.scenario))?;
        let file = self.out("json");
        let Run { circumstances, mut found } =
            if self.kept { Run::read(&file)? } else { self.measure(scenario)? };
        found.machines = icount::Machines::read(&self.out)?;
        let rows = rows::rows(&found, scenario)?;
        let mut stdout = std::io::stdout().lock();
        let tally = report::print(&mut stdout, &rows)?;
        report::print_paths(&mut stdout, &found.samples)?;
        self.keep(&file, &json!({"circumstances": circumstances, "rows": rows, "found": found}))?;
        let page = report::markdown(&circumstances, &found, &rows);
        let own = self.out("md");
        put(&own, &page)?;
        say(&format!("the report is {}", own.display()));
        if self.write {
            put(FilePath::new(PAGE), &page)?;
        }
        tally.print(&mut stdout, "goals missed")?;
        Ok(tally)
    }

    /// Each path against itself.
    fn hold_against_itself(&self, scenario: &ScenarioFile) -> Result<Tally> {
        let circumstances = self.circumstances();
        let wanted = self.wanted(scenario);
        let scene = self.scene(&wanted, &[Part::Rounds])?;
        let routes = scene.routes()?;
        let samples = rounds::run(&wanted, &routes, Some(&routes), self.settings())?;
        scene.end()?;
        let mut stdout = std::io::stdout().lock();
        let tally = itself::print(&mut stdout, &samples, self.within / 100.0)?;
        let file = self.out("itself.json");
        self.keep(&file, &json!({"circumstances": circumstances, "samples": samples}))?;
        tally.print(&mut stdout, "differ")?;
        Ok(tally)
    }

    /// Measures the parts that are wanted.
    fn measure(&self, scenario: &ScenarioFile) -> Result<Run> {
        let Self { cpu, only, .. } = self;
        let Amount { revocations, kills, .. } = self.amount();
        let circumstances = self.circumstances();
        let wanted = self.wanted(scenario);
        let scene = self.scene(&wanted, only)?;
        let mut found = Found::default();
        for part in only {
            match part {
                Part::Rounds => {
                    found.samples = rounds::run(&wanted, &scene.routes()?, None, self.settings())?;
                }
                Part::Alone => found.alone = alone::measure(*cpu).context("the programs by themselves")?,
                Part::Revoked => {
                    say("policy revoked, eBPF");
                    found.revoked = revoke::by_policy(scene.fast()?, revocations, *cpu)?;
                    say("policy revoked, OVS");
                    found.revoked_ovs = revoke::by_policy(scene.ovs()?, revocations, *cpu)?;
                }
                Part::Killed => {
                    for (node, port) in KILLS.into_iter().take(kills) {
                        say(&format!("user space killed, then the flows of {node} changed"));
                        found.orphaned.push(revoke::without_user_space(scene.fast()?, node, port, *cpu)?);
                    }
                }
            }
        }
        scene.end()?;
        Ok(Run { circumstances, found })
    }

    fn circumstances(&self) -> report::Circumstances {
        report::Circumstances::now(self.cpu, self.amount().rounds, self.slice_ms)
    }

    fn settings(&self) -> Settings {
        let slice = Duration::from_millis(self.slice_ms);
        Settings { cpu: self.cpu, rounds: self.amount().rounds, slice }
    }

    fn amount(&self) -> Amount {
        let usual = if self.quick { QUICK } else { LONG };
        Amount {
            rounds: self.rounds.map_or(usual.rounds, usize::from),
            revocations: self.revocations.unwrap_or(usual.revocations),
            kills: usual.kills,
        }
    }

    fn wanted(&self, scenario: &ScenarioFile) -> Vec<(Load, Vec<Path>)> {
        plan::wanted(scenario, &self.paths, &self.loads)
    }

    /// A file of this run, by what its name ends with: named after the scenario.
    fn out(&self, end: &str) -> PathBuf {
        let name = FilePath::new(&self.scenario).file_stem().unwrap_or_default();
        self.out.join(format!("{}.{end}", name.display()))
    }

    /// What these parts need.
    fn scene(&self, wanted: &[(Load, Vec<Path>)], parts: &[Part]) -> Result<Scene> {
        let Self { name, there, sabotage, .. } = self;
        let mut paths: Vec<Path> = Vec::new();
        if parts.contains(&Part::Rounds) {
            paths.extend(wanted.iter().flat_map(|(_, paths)| paths));
        }
        paths.sort();
        paths.dedup();
        let both = parts.contains(&Part::Revoked) || parts.contains(&Part::Killed);
        Scene::set(Clusters { name, there: *there, sabotage: *sabotage }, &paths, both)
    }

    /// Leaves what was measured in a file.
    fn keep(&self, file: &FilePath, all: &serde_json::Value) -> Result<()> {
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        put(file, &serde_json::to_string(all)?)
    }
}

fn put(path: &FilePath, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// How far it is; the table has standard output to itself.
fn say(line: &str) {
    // The reader is gone: no reason to stop.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_quick_run_is_a_short_one_unless_more_is_asked_for_and_never_the_published_one() {
        let amount = |words: &[&str]| {
            let line = Line::try_parse_from([&["fastpath"], words].concat());
            line.map(|line| line.args.amount()).map_err(|error| error.to_string())
        };
        assert_eq!(amount(&[]), Ok(LONG));
        assert_eq!(amount(&["--quick"]), Ok(QUICK));
        assert_eq!(amount(&["--quick", "--rounds", "90"]), Ok(Amount { rounds: 90, ..QUICK }));
        assert!(amount(&["--rounds", "0"]).unwrap_err().contains("--rounds"));
        assert!(amount(&["--quick", "--write"]).unwrap_err().contains("--write"));
    }
}
