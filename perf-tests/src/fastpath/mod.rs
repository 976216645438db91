//! `cargo xtask bench fastpath`: the fast path against everything that it is held against, in one run.
//!
//! [`worlds`] and [`cluster`] make the paths, [`rounds`] runs the load tool of [`load`] on them in turn, [`revoke`] looks
//! for packets that come too late, [`alone`] measures
//! the programs by themselves, [`icount`] reads what was counted in emulated machines; [`rows`] holds the goals and
//! [`report`] writes it down.

mod alone;
mod cell;
mod cluster;
mod direct;
mod icount;
mod load;
mod place;
mod report;
mod revoke;
mod rounds;
mod rows;
mod worlds;

use std::io::Write;
use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::json;
use testbed::cluster::config::Datapath;

use cell::{Route, Settings};
use cluster::{Cluster, Sabotage};
use rounds::Path;
use rows::Found;
use worlds::World;

pub(crate) use alone::run as alone;
pub(crate) use direct::keep as keep_direct;
pub(crate) use load::Args as LoadArgs;

/// Where `--write` puts the page.
const PAGE: &str = "docs/performance.md";

/// Rounds without which a median says too little.
const FEWEST_ROUNDS: usize = 7;
/// Seconds before each measurement.
const WARM_UP: f64 = 0.25;

/// How the fast path is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Exit with 1 and name the rows when a goal is missed or a row was not measured.
    #[arg(long)]
    check: bool,
    /// Write the tables to docs/performance.md.
    #[arg(long)]
    write: bool,
    /// Rounds; every path is measured once in each.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// CPU that both ends stay on.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// How often a policy is revoked, with eBPF and with OVS.
    #[arg(long, default_value_t = 20)]
    revocations: u16,
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
    #[arg(long, conflicts_with_all = ["there", "only"])]
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
        // Counted anew from the files of the machines, whose form may be another.
        if let Some(found) = all["found"].as_object_mut() {
            found.remove("machines");
        }
        serde_json::from_value(all).with_context(|| file.display().to_string())
    }
}

/// What is measured in one run.
struct Scene {
    fast: Cluster,
    ovs: Cluster,
    uncounted: Option<Cluster>,
    worlds: Vec<(Path, World)>,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        if self.check && self.rounds < FEWEST_ROUNDS {
            bail!("--rounds {} with --check: a verdict needs at least {FEWEST_ROUNDS}", self.rounds);
        }
        let file = self.out.join("fastpath.json");
        let Run { circumstances, mut found } = if self.kept { Run::read(&file)? } else { self.measure()? };
        if self.check && circumstances.rounds < FEWEST_ROUNDS {
            bail!("{}: {} rounds are no verdict", file.display(), circumstances.rounds);
        }
        found.machines = icount::Machines::read(&self.out)?;
        let rows = rows::rows(&found);
        let missed = report::print(&mut std::io::stdout().lock(), &rows)?;
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        let all = json!({"circumstances": circumstances, "rows": rows, "found": found});
        put(&file, &serde_json::to_string_pretty(&all)?)?;
        if self.write {
            put(FilePath::new(PAGE), &report::markdown(&circumstances, &found, &rows))?;
        }
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "\ngoals missed: {}", missed.len())?;
        for row in &missed {
            writeln!(stdout, "  {row}")?;
        }
        stdout.flush()?;
        if self.check && !missed.is_empty() {
            // An error of anyhow would show where in the program it was raised.
            std::process::exit(1);
        }
        Ok(())
    }

    /// Measures the parts that are wanted.
    fn measure(&self) -> Result<Run> {
        let Self { rounds, seconds, cpu, revocations, only, .. } = self;
        let (rounds, seconds, cpu) = (*rounds, *seconds, *cpu);
        let circumstances = report::Circumstances::now(cpu, rounds, seconds);
        let scene = Scene::set(&self.name, self.there, self.sabotage, only.contains(&Part::Rounds))?;
        let mut found = Found::default();
        for part in only {
            match part {
                Part::Rounds => {
                    let settings = Settings { cpu, seconds, warm_up: WARM_UP };
                    found.samples = rounds::run(&scene.routes()?, rounds, settings)?;
                }
                Part::Alone => found.alone = alone::measure(cpu).context("the programs by themselves")?,
                Part::Revoked => {
                    say("policy revoked, eBPF");
                    found.revoked = revoke::by_policy(&scene.fast, *revocations, cpu)?;
                    say("policy revoked, OVS");
                    found.revoked_ovs = revoke::by_policy(&scene.ovs, *revocations, cpu)?;
                }
                Part::Killed => {
                    for (node, port) in [("n2", 7401), ("n1", 7402), ("n2", 7403), ("n1", 7404)] {
                        say(&format!("user space killed, then the flows of {node} changed"));
                        found.orphaned.push(revoke::without_user_space(&scene.fast, node, port, cpu)?);
                    }
                }
            }
        }
        scene.end()?;
        Ok(Run { circumstances, found })
    }
}

impl Scene {
    /// Brings everything up; the cluster without counters only if it is `compared`.
    fn set(name: &str, there: bool, sabotage: Option<Sabotage>, compared: bool) -> Result<Self> {
        let worlds = vec![
            (Path::Host, worlds::host()?),
            (Path::Direct, worlds::direct()?),
            (Path::Routed, worlds::routed()?),
            (Path::Vxlan, worlds::vxlan()?),
            (Path::Veth, worlds::veth()?),
        ];
        let compared = compared && !there;
        let uncounted = if compared { Cluster::uncounted(&format!("{name}-uncounted"))? } else { None };
        if compared && uncounted.is_none() {
            say("the agent has no programs without counters; those rows are not measured");
        }
        let cluster = |kind: &str, datapath| {
            let name = format!("{name}-{kind}");
            if there { Cluster::there(&name) } else { Cluster::up(&name, datapath) }
        };
        let fast = match sabotage {
            Some(sabotage) => Cluster::sabotaged(&format!("{name}-ebpf"), sabotage)?,
            None => cluster("ebpf", Datapath::Auto)?,
        };
        Ok(Self { fast, ovs: cluster("ovs", Datapath::Ovs)?, uncounted, worlds })
    }

    fn routes(&self) -> Result<Vec<(Path, Route)>> {
        let mut routes = vec![
            (Path::Fast, self.fast.across()?),
            (Path::FastSame, self.fast.same_node()?),
            (Path::Ovs, self.ovs.across()?),
            (Path::OvsSame, self.ovs.same_node()?),
        ];
        if let Some(cluster) = &self.uncounted {
            routes.push((Path::Uncounted, cluster.across()?));
        }
        routes.extend(self.worlds.iter().map(|(path, world)| (*path, world.route())));
        Ok(routes)
    }

    fn end(self) -> Result<()> {
        self.fast.down()?;
        self.ovs.down()?;
        self.uncounted.map_or(Ok(()), Cluster::down)
    }
}

fn put(path: &FilePath, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// How far it is; the table has standard output to itself.
fn say(line: &str) {
    // Nobody reads it any more: no reason to stop.
    let _ = writeln!(std::io::stderr(), "{line}");
}
