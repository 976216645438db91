//! The executable `slipstream-entrypoint ROLE`: the first process of each container.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use entrypoint::args::Args;
use entrypoint::error::Error;
use entrypoint::say;

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(code) => code,
        Err(stopped @ Error::Stopped(_)) => {
            say(stopped);
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}
