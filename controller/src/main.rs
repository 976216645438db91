//! The controller's executable.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use controller::args::Args;

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
