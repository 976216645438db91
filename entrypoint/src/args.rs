//! Command line of `slipstream-entrypoint`: the role of a container.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::central::{self, Places};
use crate::error::Result;
use crate::node;
use crate::ovs::{self, Ovs};
use crate::ready;
use crate::say;
use crate::settings::Settings;
use crate::supervise::{self, Group};

/// Runs one part of Slipstream in a container.
#[derive(Debug, Parser)]
#[command(name = "slipstream-entrypoint", version)]
pub struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// OVN's northbound and southbound database and northd.
    OvnCentral(Places),
    /// Slipstream's controller.
    Controller,
    /// Open vSwitch: its database and the switch.
    Ovs(Ovs),
    /// OVN's controller of a node.
    OvnController(Ovs),
    /// Slipstream's agent of a node.
    NodeAgent,
    /// Take everything of Slipstream off the node: what the agent set up, and databases of OVN.
    Cleanup(Places),
    /// Wait until every node has a pod that will take everything off it.
    CleanupPrepare,
    /// Remove what controller and agents wrote into Kubernetes' objects.
    CleanupCluster,
    /// Do nothing until SIGTERM.
    Wait,
    /// Ask whether a role is ready; for probes.
    Ready {
        /// The role.
        #[arg(value_enum)]
        role: Asked,
        #[command(flatten)]
        places: Places,
    },
    /// Ask whether Open vSwitch answers or waits for the end of another one; for probes.
    Alive,
    /// Have this container's programs end and start again.
    Restart,
}

/// Roles without a page of their own that says whether they are ready.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Asked {
    OvnCentral,
    Ovs,
    OvnController,
}

impl Args {
    /// Runs the role; returns when it has ended.
    ///
    /// # Errors
    /// The role cannot be started, or is not ready.
    pub fn run(self) -> Result<ExitCode> {
        let settings = Settings::of_process();
        let never = match self.role {
            Role::OvnCentral(places) => return central::run(&settings, &places),
            Role::Ovs(ovs) => return ovs::ovs(&settings, &ovs),
            Role::OvnController(ovs) => return node::ovn_controller(&settings, &ovs),
            Role::Cleanup(places) => return node::cleanup(&settings, &Ovs::default(), &places),
            Role::Wait => {
                say("waiting for SIGTERM");
                return Ok(Group::new()?.run());
            }
            Role::Ready { role, places } => {
                match role {
                    Asked::OvnCentral => ready::central(&places)?,
                    Asked::Ovs => ready::ovs(&Ovs::default())?,
                    Asked::OvnController => ready::ovn_controller()?,
                }
                return Ok(ExitCode::SUCCESS);
            }
            Role::Alive => {
                ready::ovs_is_alive(&Ovs::default())?;
                return Ok(ExitCode::SUCCESS);
            }
            Role::Restart => {
                supervise::ask_for_restart()?;
                return Ok(ExitCode::SUCCESS);
            }
            Role::Controller => node::controller(&settings)?,
            Role::NodeAgent => node::agent(&settings, &Ovs::default())?,
            Role::CleanupPrepare => node::cleanup_cluster(&settings, &["--prepare"])?,
            Role::CleanupCluster => node::cleanup_cluster(&settings, &[])?,
        };
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_an_argument() {
        for role in [
            "ovn-central",
            "controller",
            "ovs",
            "ovn-controller",
            "node-agent",
            "cleanup",
            "cleanup-prepare",
            "cleanup-cluster",
            "wait",
            "alive",
            "restart",
        ] {
            Args::try_parse_from(["slipstream-entrypoint", role]).unwrap();
        }
        Args::try_parse_from(["slipstream-entrypoint", "ready", "ovn-central"]).unwrap();
        assert!(Args::try_parse_from(["slipstream-entrypoint"]).is_err());
    }
}
