//! `slipstream-traffic`: one end of a network benchmark. See `slipstream-traffic --help` and `docs/traffic.md`.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match traffic::cli::Args::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // A closed standard error cannot be reported.
            let _ = writeln!(std::io::stderr(), "slipstream-traffic: {error:#}");
            ExitCode::FAILURE
        }
    }
}
