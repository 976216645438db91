//! Command line of the node agent and its verbs; flags are in [`crate::config`].

use clap::{Parser, Subcommand};

use crate::config::Config;
use crate::gateway::nics;

/// Node agent of Slipstream.
#[derive(Debug, Parser)]
#[command(name = "slipstream-node-agent", version)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Executes the command. `warnings` are logged first.
    ///
    /// # Errors
    /// Error of the command.
    pub fn run(self, warnings: &[String]) -> anyhow::Result<()> {
        let config: &Config = match &self.command {
            Command::Cleanup(cleanup) => &cleanup.config,
            Command::Run(config)
            | Command::NicsToBridge { config, .. }
            | Command::BridgesToNics { config, .. } => config,
        };
        supervision::log::start(&config.log)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        match self.command {
            Command::Run(config) => crate::run::run(*config),
            Command::Cleanup(cleanup) => crate::run::cleanup(cleanup.config, cleanup.all),
            Command::NicsToBridge { interfaces, dry_run, config } => {
                crate::run::until_done(nics::to_bridge(*config, interfaces, dry_run))
            }
            Command::BridgesToNics { bridges, config } => {
                crate::run::until_done(nics::to_nics(*config, bridges))
            }
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this node until SIGTERM. Traffic is not interrupted when the agent exits.
    Run(Box<Config>),
    /// Remove everything the agent set up: pod ports, links, eBPF programs, gateway, CNI configuration.
    Cleanup(Box<Cleanup>),
    /// Make an interface a port of a gateway bridge, with its addresses and routes on the bridge, as the agent does when it starts.
    #[command(mut_arg("node_name", |arg| arg.required(false).default_value("").hide(true)))]
    NicsToBridge {
        /// The interface; only one can be the uplink.
        #[arg(required = true, num_args = 1)]
        interfaces: Vec<String>,
        /// Say what would be done, and do nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        config: Box<Config>,
    },
    /// Give the interface of a gateway bridge its addresses and routes back, and remove the bridge.
    #[command(mut_arg("node_name", |arg| arg.required(false).default_value("").hide(true)))]
    BridgesToNics {
        /// The bridge.
        #[arg(required = true, num_args = 1)]
        bridges: Vec<String>,
        #[command(flatten)]
        config: Box<Config>,
    },
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

#[cfg(test)]
mod tests {
    use api::annotation::GatewayMode;
    use api::settings::{self, Program, Sources};

    use super::*;

    /// A command line of ovn-kubernetes, as the process would read it.
    fn old(line: &str) -> Result<Command, String> {
        let argv = std::iter::once("ovnkube").chain(line.split_whitespace()).map(Into::into).collect();
        let read = settings::read_from::<Args>(Program::Agent, argv, &Sources::default());
        Ok(read.map_err(|error| error.to_string())?.args.command)
    }

    fn run(line: &str) -> Config {
        match old(line) {
            Ok(Command::Run(config)) => *config,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_of_an_ovnkube_node_starts_the_agent() {
        let line = "-k8s-kubeconfig kubeconfig.yaml -loglevel=4 -logfile=/var/log/ovn-kubernetes/ovnkube.log \
                    -k8s-apiserver=http://192.0.2.1:8080 -init-node=n1 -nodeport -nb-address=tcp:192.0.2.1:6641 \
                    -sb-address=tcp:192.0.2.1:6642 -k8s-token=secret -init-gateways -gateway-interface=enp0s9 \
                    -gateway-nexthop=192.0.2.254 -k8s-service-cidr=172.16.1.0/24 -cluster-subnets=192.168.0.0/16"
            .replace('\\', " ");
        let config = run(&line);
        assert_eq!((config.node_name.as_str(), config.sb.as_str()), ("n1", "tcp:192.0.2.1:6642"));
        assert_eq!((config.node_port, config.gateway_interface.as_str()), (true, "enp0s9"));
        assert_eq!(config.gateway_next_hop, ["192.0.2.254".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(config.network.service_cidrs[0].to_string(), "172.16.1.0/24");
        assert_eq!(config.log.log_level.as_deref(), Some("info"));
        assert_eq!(config.gateway_mode, GatewayMode::Shared);
        assert_eq!(run(&format!("{line} -gateway-local")).gateway_mode, GatewayMode::Local);
    }

    #[test]
    fn the_commands_before_ovnkube_start_the_agent_too() {
        let config = run("minion-init --cluster-ip-subnet=192.168.0.0/16 --node-name=kube-minion1");
        assert_eq!(config.node_name, "kube-minion1");
        let gateway = "gateway-init --cluster-ip-subnet=192.168.0.0/16 --physical-interface eth1 --physical-ip 10.33.74.138/24 \
                       --node-name=kube-minion2 --default-gw 10.33.74.253"
            .replace('\\', " ");
        assert_eq!(run(&gateway).gateway_interface, "eth1");
        let bridge = "gateway-init --bridge-interface breth0 --node-name=n1 --default-gw 10.33.74.253";
        assert_eq!(run(bridge).gateway_interface, "breth0");
    }

    #[test]
    fn the_helpers_of_the_uplink_are_commands() {
        let line = "nics-to-bridge eth0";
        assert!(matches!(old(line), Ok(Command::NicsToBridge { interfaces, .. }) if interfaces == ["eth0"]));
        assert!(matches!(old("bridges-to-nics breth0"), Ok(Command::BridgesToNics { .. })));
        assert!(old("nics-to-bridge").unwrap_err().contains("INTERFACES"));
    }
}
