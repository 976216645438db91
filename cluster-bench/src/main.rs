//! `cluster-bench`: the network benchmark on a live cluster. See `cluster-bench --help` and `docs/performance-on-your-cluster.md`.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// Measures the network of a live Kubernetes cluster, path by path, with any network plugin.
#[derive(Debug, Parser)]
#[command(name = "cluster-bench", version)]
struct Args {
    #[command(subcommand)]
    command: cluster_bench::Command,
}

fn main() -> ExitCode {
    match Args::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            // A closed standard error cannot be reported.
            let _ = writeln!(std::io::stderr(), "cluster-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
