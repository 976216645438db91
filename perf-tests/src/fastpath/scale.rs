//! What the scenarios have in common that ask what a number of objects costs: three loads on paths that differ in that number alone, by the rounds
//! of the fast path.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::config::Datapath;

use super::cell::Route;
use super::load::Kind;
use super::plan::{Load, Path};
use super::rounds::{self, Settings};
use super::row::Row;
use super::samples::Samples;
use super::{put, report};

/// How it is measured.
#[derive(Debug, clap::Args)]
pub(super) struct Scale {
    /// Exit with 1 and name the rows when a goal is missed or a row was not measured; with 3 when only verdicts are missing.
    #[arg(long)]
    check: bool,
    /// Rounds; every path has one slice in each.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Milliseconds of one slice.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=1000))]
    slice_ms: u64,
    /// CPU that both ends stay on.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// Passed to the node agents.
    #[arg(long, value_enum, default_value_t)]
    pub(super) datapath: Datapath,
    /// Write all that was measured to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Loads, their names and goals against the path with the fewest objects: two that stay on the flow cache, and one of which every connection is new.
pub(super) const LOADS: [(Kind, &str, f64); 3] =
    [(Kind::TcpRr, "TCP_RR", 0.97), (Kind::UdpRr, "UDP_RR", 0.97), (Kind::Crr, "new connections", 0.9)];

impl Scale {
    pub(super) fn circumstances(&self) -> report::Circumstances {
        report::Circumstances::now(self.cpu, self.rounds.into(), self.slice_ms)
    }

    /// All loads on all paths.
    pub(super) fn measure(&self, routes: &[(Path, Route)]) -> Result<Samples> {
        let paths: Vec<Path> = routes.iter().map(|(path, _)| *path).collect();
        let wanted: Vec<_> = LOADS.map(|(kind, ..)| (Load::One(kind), paths.clone())).into();
        let slice = Duration::from_millis(self.slice_ms);
        rounds::run(
            &wanted,
            routes,
            Settings { cpu: self.cpu, rounds: self.rounds.into(), slice, twice: false },
        )
    }

    /// Prints the rows and keeps what was measured; `objects` says how many there were. With `--check` it ends the process if not all goals are met.
    pub(super) fn tell(
        &self,
        circumstances: &report::Circumstances,
        rows: &[Row],
        samples: &Samples,
        objects: &Value,
    ) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let tally = report::print(&mut out, rows)?;
        report::print_paths(&mut out, samples)?;
        tally.print(&mut out, "goals missed")?;
        if let Some(file) = &self.json {
            let all = json!({
                "circumstances": circumstances, "datapath": self.datapath, "objects": objects, "rows": rows,
                "samples": samples,
            });
            put(file, &serde_json::to_string(&all)?)?;
        }
        if self.check && tally.code() != 0 {
            std::process::exit(tally.code());
        }
        Ok(())
    }
}
