//! Command line of `cluster-bench`: verbs, flags and their defaults.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::document::{Document, PAGE, REPORT};
use crate::options::{CleanArgs, CompareArgs, ReportArgs, RunArgs};
use crate::{clean, compare, html, rbac, report, run, scenario};

/// What can be done with a live cluster.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure the network of a cluster: deploys, measures, collects, and removes everything.
    #[command(after_long_help = MORE)]
    Run(Box<RunArgs>),
    /// Remove what a run that was killed has left.
    Clean(CleanArgs),
    /// Compare two results: better, worse, the same or no verdict, row by row. Ends with 1 if a row is worse.
    Compare(CompareArgs),
    /// List the scenarios that come with the program.
    Scenarios,
    /// Make the reports of a result anew, report.md and report.html, beside it.
    Report(ReportArgs),
}

const MORE: &str = "\
Examples:
  cluster-bench run --kubeconfig ~/.kube/config --quick
  cluster-bench run --kubeconfig FILE --nodes worker-1,worker-2 --image registry.example/slipstream-traffic:0.1.0 --out before
  cluster-bench run --kubeconfig FILE --paths pod-ip,cluster-ip --tests tcp-rr --goal 'cluster-ip/pod-ip>=0.95'
  cluster-bench run --kubeconfig FILE --scenario services
  cluster-bench run --print-rbac | kubectl apply -f -

Exit codes: 0 done, goals met; 1 an error, or a goal missed or not measured; 2 a wrong command line; 3 no verdict on a goal.";

impl Command {
    /// Runs the command; answers with the code of the process.
    ///
    /// # Errors
    /// What could not be done, for the user to read.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Self::Run(args) if args.print_rbac => {
                let text = rbac::text(&args.place.namespace);
                std::io::stdout().write_all(text.as_bytes()).context("standard output")?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Run(args) => run::run(*args),
            Self::Clean(args) => clean::run(&args.place),
            Self::Compare(args) => args.run(),
            Self::Report(args) => args.run(),
            Self::Scenarios => {
                std::io::stdout().write_all(scenario::list().as_bytes()).context("standard output")?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl ReportArgs {
    fn run(&self) -> Result<ExitCode> {
        let document = Document::read(&self.run)?;
        let directory = if self.run.is_dir() { Some(self.run.as_path()) } else { self.run.parent() };
        let directory = directory.unwrap_or(std::path::Path::new("."));
        for (name, text) in [(REPORT, report::markdown(&document)), (PAGE, html::page(&document))] {
            let path = directory.join(name);
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl CompareArgs {
    fn run(&self) -> Result<ExitCode> {
        let good = (0.1..=50.0).contains(&self.within);
        ensure!(good, "--within {}: must be from 0.1 to 50 per cent", self.within);
        let (before, after) = (Document::read(&self.before)?, Document::read(&self.after)?);
        let compared = compare::compare(&before, &after, self.within / 100.0);
        std::io::stdout().write_all(compared.text.as_bytes()).context("standard output")?;
        Ok(if compared.has_worse() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
