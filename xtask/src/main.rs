//! `cargo xtask VERB`: builds, tests and demonstrates Slipstream. One module per verb.
//!
//! This crate uses no other crate of the workspace, so that it always builds first and fast.

mod bench;
mod build_ebpf;
mod cli;
mod codegen;
mod demo;
mod exec;
mod lint;
mod paths;
mod setup;
mod test;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    cli::Args::parse().run()
}
