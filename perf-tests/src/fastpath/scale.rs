//! What the scenarios have in common that ask what a number of objects costs: three loads on paths that differ in that number alone, by the rounds
//! of the fast path.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use testbed::cluster::config::Datapath;

use super::cell::Route;
use super::rounds::{self, Settings};
use super::row::Row;
use super::samples::Samples;
use super::{put, report};
use crate::names::{LoadName, Path};
use crate::scenario_file::{Run as Command, ScenarioFile};

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
    pub(super) cpu: usize,
    /// Goals: a scenario of `cargo xtask bench scenario`, or a file; the command's own if none is named.
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Option<String>,
    /// Passed to the node agents.
    #[arg(long, value_enum, default_value_t)]
    pub(super) datapath: Datapath,
    /// Write all that was measured to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Loads: two that stay on the flow cache, and one of which every connection is new.
pub(super) const LOADS: [LoadName; 3] = [LoadName::TcpRr, LoadName::UdpRr, LoadName::Crr];

/// What was measured while the numbers of objects stayed as they were.
#[derive(Debug, Serialize)]
pub(super) struct Phase {
    /// How many of what.
    pub(super) objects: Value,
    pub(super) samples: Samples,
}

impl Scale {
    pub(super) fn circumstances(&self) -> report::Circumstances {
        report::Circumstances::now(self.cpu, self.rounds.into(), self.slice_ms)
    }

    /// The goals of `command`, which must be about these paths.
    pub(super) fn scenario(&self, command: Command, paths: &[Path]) -> Result<ScenarioFile> {
        let name = self.scenario.as_deref().unwrap_or(command.word());
        let file = ScenarioFile::of(name, command)?;
        file.check_paths(paths, &LOADS).with_context(|| format!("scenario {name}"))?;
        Ok(file)
    }

    /// All loads on all paths.
    pub(super) fn measure(&self, routes: &[(Path, Route)]) -> Result<Samples> {
        let paths: Vec<Path> = routes.iter().map(|(path, _)| *path).collect();
        let wanted: Vec<_> = LOADS.map(|load| (load.load(), paths.clone())).into();
        let slice = Duration::from_millis(self.slice_ms);
        rounds::run(&wanted, routes, None, Settings { cpu: self.cpu, rounds: self.rounds.into(), slice })
    }

    /// Prints the rows and keeps what was measured. With `--check` it ends the process if not all goals are met.
    pub(super) fn tell(
        &self,
        circumstances: &report::Circumstances,
        rows: &[Row],
        phases: &[Phase],
    ) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let tally = report::print(&mut out, rows)?;
        for phase in phases {
            report::print_paths(&mut out, &phase.samples)?;
        }
        tally.print(&mut out, "goals missed")?;
        if let Some(file) = &self.json {
            let all = json!({
                "circumstances": circumstances, "datapath": self.datapath, "rows": rows, "phases": phases,
            });
            put(file, &serde_json::to_string(&all)?)?;
        }
        if self.check && tally.code() != 0 {
            std::process::exit(tally.code());
        }
        Ok(())
    }
}
