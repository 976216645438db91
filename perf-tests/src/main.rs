//! Benchmarks of Slipstream on a test bed. They print samples and goals; they assert nothing about time.

use clap::Parser;

mod args;
mod bed;
mod failover;
mod fastpath;
mod flood;
mod frames;
mod kubernetes;
mod live_frames;
mod names;
mod record;
mod scenario;
mod scenario_file;
mod xdp_forward;

fn main() -> anyhow::Result<std::process::ExitCode> {
    args::Args::parse().run()
}
