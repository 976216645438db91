//! `e2e SUITE`: one suite by hand, with parameters.

use std::process::ExitCode;

use clap::Parser;
use e2e::cli::Args;

fn main() -> ExitCode {
    Args::parse().run()
}
