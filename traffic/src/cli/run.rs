//! The verb `slipstream-traffic run`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use super::plan::{self, Wanted};
use crate::client::{self, Plan, Session};
use crate::measure::Host;
use crate::report::{self, Document, FORMAT, Sliced};
use crate::slices::{self, GoalOf, Lane, Path};
use crate::statistics::Verdict;

/// Time between two attempts to open a path.
const AGAIN: Duration = Duration::from_millis(200);

/// The end of the long help.
pub(super) const MORE: &str = "\
Examples:
  slipstream-traffic run 10.0.0.7 tcp-rr --time 10
  slipstream-traffic run server udp-rate --rate 50000 --sweep 64,512,1400 --json result.json
  slipstream-traffic run 10.0.0.7 --target-address 10.96.0.10 tcp-crr
  slipstream-traffic run --paths pod=10.0.0.7,service=10.0.0.7@10.96.0.10 tcp-rr --goal 'service/pod>=0.95'

Exit codes: 0 done, goals met; 1 an error, or a goal missed or not measured; 2 a wrong command line; 3 no verdict on a goal.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) wanted: Wanted,
    /// Write the result as JSON to this file; `-` is standard output, in place of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write no live lines.
    #[arg(long)]
    quiet: bool,
    /// Measure several paths in turn, slice by slice: NAME=TARGET, or NAME=TARGET@ADDRESS for data that goes to another address.
    #[arg(long, value_delimiter = ',', value_name = "NAME=TARGET,..")]
    paths: Vec<String>,
    /// Length of a slice, in milliseconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slice_ms: u64,
    /// Rounds; each has one slice of every path.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Try for so many seconds to open a path, and leave it out, with the reason, if it does not open; without this it is an error.
    #[arg(long, value_name = "SECONDS", requires = "paths", conflicts_with = "goal")]
    patience: Option<u64>,
    /// A bound on the ratio of two paths, such as `service/pod>=0.95`; may be given more than once.
    #[arg(long, value_name = "NAME/NAME>=RATIO", requires = "paths")]
    goal: Vec<GoalOf>,
}

impl Args {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.paths.is_empty() {
            return self.say(&self.tests()?, false).map(|()| ExitCode::SUCCESS);
        }
        let length = Duration::from_millis(self.slice_ms);
        let rounds = usize::try_from(self.rounds)?;
        let (paths, plans) = plan::paths(&self.wanted, &self.paths, rounds, length, &self.goal, !self.quiet)?;
        let several = plans.len() > 1;
        let to_file = self.json.is_some() && !self.to_stdout();
        ensure!(!several || !to_file, "--json FILE: of several tests only - is possible, a line for each");
        let mut verdicts = Vec::new();
        let mut closed = BTreeSet::new();
        for plan in &plans {
            let document = self.interleaved(&paths, plan, rounds, length, &mut closed)?;
            self.say(&document, several)?;
            let ratios = document.sliced.iter().flat_map(|sliced| &sliced.ratios);
            verdicts.extend(ratios.filter_map(|ratio| ratio.verdict));
        }
        Ok(Verdict::exit_code(&verdicts))
    }

    fn to_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Writes a result where it is wanted.
    fn say(&self, document: &Document, several: bool) -> Result<()> {
        match &self.json {
            Some(_) if several => return report::write_line(document, false),
            Some(path) => report::write(document, path)?,
            None => {}
        }
        if !self.to_stdout() {
            let mut text = report::rows(document);
            if let Some(sliced) = &document.sliced {
                text.push('\n');
                text.push_str(&report::sliced(sliced));
            }
            std::io::stdout().write_all(text.as_bytes()).context("standard output")?;
        }
        Ok(())
    }

    fn tests(&self) -> Result<Document> {
        let (target, plans) = plan::tests(&self.wanted, !self.quiet)?;
        let mut session = Session::open(&target, fastrand::u64(..))?;
        let mut document = empty();
        document.servers.insert(format!("{}:{}", target.host, target.port), session.server.clone());
        for plan in &plans {
            document.rows.push(client::run(&mut session, plan)?);
        }
        Ok(document)
    }

    /// `closed`: names of paths that did not open for an earlier test; those of this one are added.
    fn interleaved(
        &self,
        paths: &[Path],
        plan: &Plan,
        rounds: usize,
        length: Duration,
        closed: &mut BTreeSet<String>,
    ) -> Result<Document> {
        if let Some(cpu) = plan.cpu {
            crate::net::pin(cpu)?;
        }
        let run = fastrand::u64(..);
        let mut document = empty();
        let (mut open, mut lanes, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
        let opened = match self.patience {
            Some(seconds) => try_all(paths, plan, run, Duration::from_secs(seconds), closed)?,
            None => paths.iter().map(|_| Ok(())).collect(),
        };
        for (path, opened) in paths.iter().zip(opened) {
            match opened.and_then(|()| Lane::open(path, plan, run)) {
                Ok(lane) => {
                    document.servers.insert(path.name.clone(), lane.server().clone());
                    open.push(path.clone());
                    lanes.push(lane);
                }
                Err(error) if self.patience.is_some() => {
                    closed.insert(path.name.clone());
                    unreachable.push((path.name.clone(), format!("{error:#}")));
                }
                Err(error) => return Err(error.context(format!("path {}", path.name))),
            }
        }
        let sliced = slices::run(&open, &mut lanes, plan, rounds, length, &self.goal)?;
        document.sliced = Some(Sliced { unreachable, ..sliced });
        Ok(document)
    }
}

/// Opens every path and closes it again, all at the same time and for so long at most; those that are `closed` are tried once. A path that is open would
/// wait for one that does not open, and a server gives up a client that says nothing.
fn try_all(
    paths: &[Path],
    plan: &Plan,
    run: u64,
    patience: Duration,
    closed: &BTreeSet<String>,
) -> Result<Vec<Result<()>>> {
    let end = Instant::now() + patience;
    let open = |path: &Path| {
        loop {
            match Lane::open(path, plan, run) {
                Err(_) if Instant::now() < end && !closed.contains(&path.name) => std::thread::sleep(AGAIN),
                done => return done.map(drop),
            }
        }
    };
    std::thread::scope(|scope| {
        let trying = paths
            .iter()
            .map(|path| std::thread::Builder::new().name("open".into()).spawn_scoped(scope, || open(path)));
        let trying = trying.collect::<std::io::Result<Vec<_>>>().context("cannot start a thread")?;
        Ok(trying.into_iter().map(|one| one.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect())
    })
}

fn empty() -> Document {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let client = Host::this();
    let (version, servers) = (client.version.clone(), BTreeMap::new());
    Document { format: FORMAT, version, begun, client, servers, rows: Vec::new(), sliced: None }
}
