//! Command line of `slipctl`: verbs, flags and their defaults.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::admin::{self as wire, FlowSpec, NodePath, Path, PathStatus, ServicePath, ServicePathRequest};
use clap::{Parser, Subcommand};
use serde_json::Value;

use crate::checks::{doctor, preflight};
use crate::client::{Client, Error};
use crate::cluster::{Reach, bundle, nodes};
use crate::output::{Output, write};
use crate::{compare, network, show, top, trace, units};

/// Exit code of a trace whose packet does not arrive.
const NOT_DELIVERED: u8 = 6;

/// Inspect and control Slipstream's flow cache on this node.
///
/// Exit codes: 0 success; 1 error reported by the agent; 2 wrong usage or input; 3 agent not reachable; 4 and 5 see `audit`; 6 see
/// `preflight`, `doctor` and `trace`.
#[derive(Debug, Parser)]
#[command(name = "slipctl", version)]
pub(crate) struct Args {
    /// Admin socket of the node agent (its --admin-socket).
    #[arg(long, global = true, env = "SLIPSTREAM_ADMIN_SOCKET", default_value = wire::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Output format.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show paths with their reasons, state of the flow cache, versions, pods and maps.
    Status {
        /// One line for each node of the cluster, by kubectl; works from any machine.
        #[arg(long)]
        all_nodes: bool,
        #[command(flatten)]
        reach: Box<Reach>,
    },
    /// List cached flows.
    Flows {
        /// Only flows of this pod: NAMESPACE/POD, a container id, or a prefix of one.
        #[arg(long)]
        endpoint: Option<String>,
        /// Maximum number of flows.
        #[arg(long, default_value_t = wire::DEFAULT_FLOWS, value_parser = at_least_one)]
        limit: usize,
    },
    /// Show packets and bytes by remote node and VNI, on the fast path and the slow path.
    Tunnels,
    /// Show the services whose connections the flow cache carries, with their backends.
    Services,
    /// Show packet and bit rates of tunnels and pods, continuously.
    Top {
        /// Interval of the readings, such as 2s or 500ms.
        #[arg(long, default_value = "1s", value_parser = units::interval)]
        interval: Duration,
        /// Number of readings; without it until interrupted.
        #[arg(long)]
        count: Option<u64>,
    },
    /// Measure a service on both paths in turn, on the traffic that it has; its path is as before afterwards.
    ///
    /// What is measured: packets, bytes and connections that the flow cache has entries for, and the CPU time of the whole machine.
    Compare {
        /// NAMESPACE/NAME of the service.
        service: String,
        /// Seconds to measure on each path, in three parts.
        #[arg(long, default_value_t = compare::SECONDS, value_parser = clap::value_parser!(u64).range(3..=300))]
        seconds: u64,
    },
    /// Compare cached flows with the verdict of OVS (ofproto/trace).
    ///
    /// Exit code 4 if a verdict differs, 5 if none differs but some could not be compared.
    Audit {
        /// Flow to audit, as shown by `slipctl flows`: `tcp 10.244.0.3:40000 10.244.1.4:80`, IPv6 as `[fd00::3]:40000`.
        #[arg(num_args = 3, value_names = ["PROTO", "SRC:PORT", "DST:PORT"], required_unless_present = "all")]
        flow: Vec<String>,
        /// Audit all valid flows of the cache, up to the limit.
        #[arg(long, conflicts_with = "flow")]
        all: bool,
        /// Maximum number of flows, with --all.
        #[arg(long, requires = "all", default_value_t = wire::DEFAULT_FLOWS, value_parser = at_least_one)]
        limit: usize,
    },
    /// Change the path of packets.
    #[command(subcommand)]
    Path(PathCommand),
    /// Look whether this machine can be a node, before Slipstream is installed. Exit code 6 if something must be changed.
    Preflight(preflight::Args),
    /// Look whether this node does what it should: agent, OVS, ovn-controller, CNI files. Exit code 6 if something does not.
    Doctor(doctor::Args),
    /// Say what becomes of a packet from a pod to a pod, service or address, by which policy, service and route. Needs kubectl.
    ///
    /// Exit code 6 if it does not arrive.
    Trace(Box<trace::Args>),
    /// Write an archive for whoever helps: objects, logs, states of all nodes. Secrets are left out. Needs kubectl and tar.
    Bundle(Box<bundle::Args>),
    /// Make, change and list virtual networks. Needs kubectl.
    Network(Box<network::Args>),
    /// Show the level of the agent's log, or change it until the agent ends.
    LogLevel {
        /// error, warn, info, debug, trace, or directives such as info,node_agent::gateway=debug.
        level: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum PathCommand {
    /// Request a path for all pods of the node; kept across restarts of the agent.
    Node {
        /// `auto` or `ebpf`: fast path for eligible pods, with `ebpf` warn if the node is not eligible; `ovs`: every packet
        /// through OVS.
        path: NodePath,
    },
    /// Keep one service off the flow cache on this node, or let it come back; kept across restarts of the agent.
    ///
    /// Without a path: show it. Without a service: list those whose path was requested.
    Service {
        /// NAMESPACE/NAME of the service.
        service: Option<String>,
        /// `ovs`: every packet of it through OVS; `ebpf`: cached again.
        path: Option<Path>,
    },
}

impl Args {
    /// Executes the command.
    pub(crate) fn run(self) -> Result<ExitCode, Error> {
        let client = Client::new(&self.socket);
        match self.command {
            Command::Status { all_nodes: true, reach } => {
                let value = nodes::status(&reach)?;
                self.output.print(&value, |all: Vec<Value>| nodes::text(&all))?;
            }
            Command::Preflight(args) => return self.output.findings(&preflight::run(&args)),
            Command::Doctor(args) => return self.output.findings(&doctor::run(&args, &client)),
            Command::Trace(args) => {
                let answer = trace::run(&args)?;
                self.output.print(&answer.json()?, |_: Value| trace::text(&answer))?;
                return Ok(if answer.delivered() {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::from(NOT_DELIVERED)
                });
            }
            Command::Bundle(args) => write(&bundle::run(&args)?)?,
            Command::Network(args) => {
                let answer = network::run(&args)?;
                self.output.print(&answer.value, |_: Value| answer.text)?;
            }
            Command::LogLevel { level } => {
                let value = client.post(wire::LOG_LEVEL, &wire::LogLevelRequest { level })?;
                self.output.print(&value, |now: wire::LogLevel| format!("{}\n", now.level))?;
            }
            Command::Status { .. } => {
                let value = client.get(wire::STATUS)?;
                self.output.print(&value, |status: wire::Status| show::status::text(&status))?;
            }
            Command::Flows { endpoint, limit } => {
                let request = wire::FlowsRequest { endpoint, limit: Some(limit) };
                let value = client.post(wire::FLOWS, &request)?;
                self.output.print(&value, |flows: Vec<wire::Flow>| show::flows::text(&flows, limit))?;
            }
            Command::Tunnels => {
                let value = client.get(wire::COUNTERS)?;
                let value = value.get("tunnels").cloned().unwrap_or(value);
                self.output.print(&value, |list: Vec<wire::TunnelCounters>| show::tunnels::text(&list))?;
            }
            Command::Services => {
                let value = client.get(wire::SERVICES)?;
                self.output.print(&value, |list: Vec<wire::ServiceTraffic>| show::services::text(&list))?;
            }
            Command::Top { interval, count } => {
                top::run(&client, interval, count, self.output == Output::Json)?;
            }
            Command::Audit { flow, limit, .. } => {
                let flow = match flow.as_slice() {
                    [protocol, source, destination] => {
                        Some(FlowSpec::parse(protocol, source, destination).map_err(Error::Usage)?)
                    }
                    _ => None,
                };
                let value = client.post(wire::AUDIT, &wire::AuditRequest { flow, limit: Some(limit) })?;
                self.output.print(&value, |reply: wire::AuditReply| show::audit::text(&reply))?;
                return Ok(audit_code(&value));
            }
            Command::Compare { service, seconds } => {
                let found = compare::run(&client, &service, Duration::from_secs(seconds))?;
                let value = serde_json::to_value(&found).map_err(Error::not_understood)?;
                self.output.print(&value, |_: Value| compare::show::text(&found))?;
            }
            Command::Path(PathCommand::Service { service: None, .. }) => {
                let value = client.get(wire::PATH_SERVICE)?;
                self.output.print(&value, |list: Vec<ServicePath>| show::service_path::list(&list))?;
            }
            Command::Path(PathCommand::Service { service: Some(service), path }) => {
                let request = ServicePathRequest { service, path, for_ms: None };
                let value = client.post(wire::PATH_SERVICE, &request)?;
                self.output.print(&value, |now: ServicePath| show::service_path::text(&now))?;
            }
            Command::Path(PathCommand::Node { path }) => {
                let value = client.post(wire::PATH_NODE, &wire::PathRequest { path })?;
                self.output.print(&value, |now: PathStatus| show::status::path(path, &now))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Exit code of an audit: 0 if all flows are the same, 4 if one differs, 5 if none differs but one is undecided.
fn audit_code(reply: &Value) -> ExitCode {
    let some = |name: &str| reply.get(name).and_then(Value::as_u64).is_some_and(|n| n > 0);
    ExitCode::from(match (some("different"), some("undecided")) {
        (true, _) => 4,
        (false, true) => 5,
        (false, false) => 0,
    })
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a whole number of at least 1".to_owned()),
    }
}

#[cfg(test)]
mod tests;
