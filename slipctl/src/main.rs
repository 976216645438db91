//! `slipctl`: command line client of the node agent's admin socket. See `slipctl --help` and `docs/slipctl.md`.

mod args;
mod checks;
mod client;
mod cluster;
mod compare;
mod network;
mod output;
mod show;
mod table;
mod top;
mod trace;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match args::Args::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // A closed standard error cannot be reported.
            let _ = writeln!(std::io::stderr(), "slipctl: {error}");
            error.code()
        }
    }
}
