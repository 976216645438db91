//! Command line of `slipstream-traffic`: verbs, flags and their defaults.

mod plan;
mod run;
mod serve;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::compare;
use crate::report::Document;
use crate::statistics::Change;

/// Measures a network between two ends.
///
/// Start `slipstream-traffic serve` where traffic is to end, and `slipstream-traffic run TARGET TEST` where it is to begin.
#[derive(Debug, Parser)]
#[command(name = "slipstream-traffic", version)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve all tests: one run at a time, without end.
    Serve(serve::Args),
    /// Run a test against a server, and print what was measured.
    #[command(after_long_help = run::MORE)]
    Run(Box<run::Args>),
    /// Compare two results of `run --json`: better, worse or the same, test by test.
    ///
    /// Ends with 1 if any test is worse.
    Compare {
        /// The first result.
        before: PathBuf,
        /// The second result.
        after: PathBuf,
    },
}

impl Args {
    /// Runs the command; answers with the code of the process: 0, 1 for a goal that was missed or a test that is worse, 3 for no
    /// verdict.
    ///
    /// # Errors
    /// What could not be done, for the user to read.
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Serve(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Compare { before, after } => {
                let (text, changes) = compare::compare(&Document::read(&before)?, &Document::read(&after)?);
                std::io::stdout().write_all(text.as_bytes()).context("standard output")?;
                let is_worse = changes.contains(&Change::Worse);
                Ok(if is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
            }
        }
    }
}
