//! Order of start-up, and of cleaning up.

use crate::args::Config;

/// Serves the node until SIGTERM or SIGINT.
pub fn run(config: Config) -> anyhow::Result<()> {
    anyhow::bail!("node {}: not built yet", config.node_name)
}

/// Puts the node back as it was before the agent.
pub fn cleanup(config: Config) -> anyhow::Result<()> {
    anyhow::bail!("node {}: not built yet", config.node_name)
}
