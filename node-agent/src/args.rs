//! The command line.

use clap::{Parser, Subcommand};

use crate::config::Config;

/// Slipstream's node agent.
#[derive(Debug, Parser)]
#[command(name = "slipstream-node-agent", version)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Does what the command line says.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(config) => crate::run::run(*config),
            Command::Cleanup(config) => crate::run::cleanup(*config),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this node until SIGTERM. Traffic goes on when the agent ends.
    Run(Box<Config>),
    /// Put the node back as it was before the agent: ports, links, eBPF, gateway, CNI configuration.
    Cleanup(Box<Config>),
}
