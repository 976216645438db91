//! `testbed`: a Slipstream cluster on one machine.

use std::process::ExitCode;

use clap::Parser;
use testbed::cli::Args;
use testbed::ui;

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(code) => code,
        Err(error) => {
            ui::say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
