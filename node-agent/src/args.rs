//! Command line of the node agent.

use clap::{Parser, Subcommand};

use crate::config::Config;

/// Node agent of Slipstream.
#[derive(Debug, Parser)]
#[command(name = "slipstream-node-agent", version)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Executes the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(config) => crate::run::run(*config),
            Command::Cleanup(cleanup) => crate::run::cleanup(cleanup.config, cleanup.all),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this node until SIGTERM. Traffic is not interrupted when the agent exits.
    Run(Box<Config>),
    /// Remove everything the agent set up: pod ports, links, eBPF programs, gateway, CNI configuration.
    Cleanup(Box<Cleanup>),
}

/// Flags of `cleanup`.
#[derive(Debug, clap::Args)]
struct Cleanup {
    #[command(flatten)]
    config: Config,
    /// Also remove what an agent that is started later would use: OVN's bridge and settings in OVS, kernel settings, the state
    /// directory.
    #[arg(long)]
    all: bool,
}
