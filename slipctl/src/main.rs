//! `slipctl`: what an operator asks a node's agent. See `slipctl --help` and `docs/slipctl.md`.

mod args;
mod client;
mod show;
mod table;
mod top;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match args::Args::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // Nobody is there to be told when standard error is closed.
            let _ = writeln!(std::io::stderr(), "slipctl: {error}");
            error.code()
        }
    }
}
