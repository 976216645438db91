//! The command line of `testbed`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::cluster::{Bed, Shape, installed, node_state};
use crate::config::{self, Config};
use crate::host::{init, relay};
use crate::nodes::{kubelet, scheduler};
use crate::runtime::block_on;
use crate::{exec, images, pod, tools, ui};

/// A Slipstream cluster on one machine.
#[derive(Debug, Parser)]
#[command(name = "testbed")]
pub struct Args {
    /// Name of the cluster.
    #[arg(long, global = true, default_value = "bed")]
    name: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Bring a cluster up.
    Up(Shape),
    /// Take a cluster down, whatever state it is in.
    Down,
    /// Say what is left of a cluster on this machine.
    Leftovers,
    /// Make the container images of real nodes, unless they are there and fit.
    Images,
    /// Give a real node the images of an OCI archive: there is no registry.
    Image {
        /// n1, n2, ..
        node: String,
        /// The archive.
        archive: PathBuf,
    },
    /// Show hosts, processes, nodes and pods.
    Status,
    /// Print the path of the administrator's kubeconfig.
    Kubeconfig,
    /// Add, remove and look into pods.
    #[command(subcommand)]
    Pod(pod::Verb),
    /// kubectl as the cluster's administrator.
    Kubectl {
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// helm as the cluster's administrator, in the namespace of the release.
    Helm {
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// What differs on a node from before the installation by the chart: `+` came, `-` went.
    Changes {
        /// n1, n2, ..
        node: String,
    },
    /// Run a command on a host: `testbed exec n1 -- ip addr`.
    Exec {
        /// Only in the host's network, with this machine's files.
        #[arg(long)]
        network: bool,
        /// The host: central, ext, n1, ..
        host: String,
        /// The command.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Kill a process of a host with SIGKILL, and leave it dead.
    Kill {
        /// The host: central, n1, ..
        host: String,
        /// The process, as `status` shows it.
        process: String,
    },
    /// Kill a process of a host with SIGKILL and start it again.
    Restart {
        /// The host: central, n1, ..
        host: String,
        /// The process, as `status` shows it.
        process: String,
    },
    /// End a node with all that runs on it and start it again; only a real node keeps its disk.
    Reboot {
        /// n1, n2, ..
        node: String,
    },
    /// Wait until the controller has compared the northbound database with what it wants, and fail if it ever differed.
    Verify,
    /// The traffic tool.
    #[command(subcommand)]
    Probe(tools::Args),
    #[command(hide = true)]
    HostInit {
        host: String,
        bed: PathBuf,
        #[arg(long)]
        disk: bool,
    },
    #[command(hide = true)]
    Relay(relay::Args),
    #[command(hide = true)]
    FakeNode(kubelet::Args),
    #[command(hide = true)]
    Scheduler(scheduler::Args),
}

impl Args {
    /// Does what was asked.
    pub fn run(self) -> Result<ExitCode> {
        let Self { name, verb } = self;
        let open = || Bed::open(&name);
        match verb {
            Verb::Up(shape) => {
                Bed::up(shape.config(&name)?)?;
                ui::say(format_args!("cluster {name} is up; see `testbed --name {name} status`"));
            }
            Verb::Down => match Bed::rest(&name)? {
                Some(rest) => rest.down()?,
                None => ui::say(format_args!("there is no cluster named {name}")),
            },
            Verb::Leftovers => return leftovers(&name),
            Verb::Images => {
                let (archive, made) = images::ensure(&config::cache()?)?;
                let what = if made { "made" } else { "up to date" };
                ui::say(format_args!("{}: {what}", archive.display()));
            }
            Verb::Image { node, archive } => installed::import_archive(&open()?, &node, &archive)?,
            Verb::Status => status(&open()?)?,
            Verb::Kubeconfig => ui::say(open()?.config().kubeconfig("admin").display()),
            Verb::Pod(verb) => return verb.run(&open()?),
            Verb::Kubectl { args } => return exec::foreground(open()?.kubectl_command()?.args(args)),
            Verb::Helm { args } => return exec::foreground(open()?.helm_command()?.args(args)),
            Verb::Changes { node } => {
                node_state::changes(&open()?, &node)?.iter().for_each(ui::say);
            }
            Verb::Exec { network, host, command } => {
                let (program, args) = command.split_first().context("no command")?;
                let bed = open()?;
                let host = bed.host(&host);
                let mut command =
                    if network { host.network_command(program) } else { host.command(program) }?;
                return exec::foreground(command.args(args));
            }
            Verb::Kill { host, process } => open()?.host(&host).kill(&process)?,
            Verb::Restart { host, process } => open()?.host(&host).restart(&process)?,
            Verb::Reboot { node } => open()?.reboot(&node)?,
            Verb::Verify => ui::say(open()?.verified()?),
            Verb::Probe(args) => args.run()?,
            Verb::HostInit { host, bed, disk } => init::run(&host, &bed, disk)?,
            Verb::Relay(args) => block_on(args.run())?,
            Verb::FakeNode(args) => block_on(args.run())?,
            Verb::Scheduler(args) => block_on(args.run())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn verdict(good: bool) -> Result<ExitCode> {
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn leftovers(name: &str) -> Result<ExitCode> {
    let left = crate::cluster::leftovers::find(&Config::new(name, 1)?)?;
    for line in &left {
        ui::say(line);
    }
    verdict(left.is_empty())
}

fn status(bed: &Bed) -> Result<()> {
    for host in bed.config().hosts() {
        let handle = bed.host(&host.name);
        let ip = host.ip.map(|ip| ip.to_string()).unwrap_or_default();
        match handle.processes() {
            Err(error) => ui::say(format_args!("{:<8} {ip:<12} {error:#}", host.name)),
            Ok(processes) => {
                ui::say(format_args!("{:<8} {ip:<12} runs as {}", host.name, handle.init()?.pid));
                for process in processes {
                    let state = match (process.pid, process.end) {
                        (Some(pid), _) => format!("runs ({pid})"),
                        (None, end) => format!("ended: {}", end.unwrap_or_default()),
                    };
                    ui::say(format_args!("  {:<26} {state}", process.name));
                }
            }
        }
    }
    ui::say(bed.kubectl(&["get", "nodes,pods,services", "-A", "-o", "wide"])?);
    Ok(())
}
