//! Slipstream's node agent. See `slipstream-node-agent --help`.

use std::process::ExitCode;

use clap::Parser;
use node_agent::args::Args;

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
