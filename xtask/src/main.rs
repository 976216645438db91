//! `cargo xtask VERB`: builds, tests and demonstrates Slipstream. One module per verb.
//!
//! This crate uses no other crate of the workspace, so that it always builds first and fast.

mod bench;
mod build;
mod build_ebpf;
mod chart;
mod cli;
mod codegen;
mod conformance;
mod demo;
mod exec;
mod fuzz;
mod image;
mod lint;
mod paths;
mod release;
mod setup;
mod tally;
mod test;
mod vm_test;
mod vmlinux;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            exec::say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
