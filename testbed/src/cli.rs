//! The command line of `testbed`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::bed::Bed;
use crate::bed::config::{self, AttachMode, Config, Datapath, OvsDatapath, Runtime};
use crate::host::{init, relay};
use crate::nodes::{kubelet, scheduler};
use crate::{
    churn, demo, exact, golden, hardship, icount, images, kernel, laws, life, pod, probe, scale, supervise,
    ui, uplink,
};

/// A Slipstream cluster on one machine.
#[derive(Debug, Parser)]
#[command(name = "testbed")]
pub struct Args {
    /// Name of the cluster: `bed`, or for the verbs that test a cluster of their own the name of the verb.
    #[arg(long, global = true)]
    name: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

/// What cluster to make.
#[derive(Clone, Debug, clap::Args)]
pub struct Shape {
    /// Number of nodes.
    #[arg(long, default_value_t = 2)]
    pub nodes: u8,
    /// What the node agents forward with.
    #[arg(long, value_enum, default_value_t)]
    pub datapath: Datapath,
    /// How the node agents attach their programs.
    #[arg(long, value_enum, default_value_t)]
    pub attach_mode: AttachMode,
    /// Which datapath of OVS the nodes have.
    #[arg(long, value_enum, default_value_t)]
    pub ovs_datapath: OvsDatapath,
    /// What runs pods on the nodes.
    #[arg(long, value_enum, default_value_t)]
    pub runtime: Runtime,
    /// IPv6 beside IPv4.
    #[arg(long)]
    pub dual_stack: bool,
    /// Neither controller nor node agents: a bed to try things on by hand.
    #[arg(long)]
    pub no_plugin: bool,
    /// A control: network policies are not enforced.
    #[arg(long)]
    pub without_policy: bool,
    /// How often the controller compares the northbound database with what it wants, seconds: 10, or this.
    #[arg(long)]
    pub verify_interval: Option<u32>,
}

impl Shape {
    /// The description of that cluster.
    pub fn config(&self, name: &str) -> Result<Config> {
        let Self {
            nodes,
            datapath,
            attach_mode,
            ovs_datapath,
            runtime,
            dual_stack,
            no_plugin,
            without_policy,
            verify_interval,
        } = *self;
        let usual = Config::new(name, nodes)?;
        let config = Config {
            datapath,
            attach_mode,
            ovs_datapath,
            runtime,
            plugin: !no_plugin,
            network_policy: !without_policy,
            verify_interval: verify_interval.unwrap_or(usual.verify_interval),
            ..usual
        };
        Ok(if dual_stack { config.with_dual_stack() } else { config })
    }

    /// Brings that cluster up, in place of one that an earlier run has left.
    pub fn bring_up(&self, name: &str) -> Result<Bed> {
        if let Some(old) = Bed::rest(name)? {
            ui::say(format_args!("taking down the cluster {name} of an earlier run"));
            old.down()?;
        }
        Bed::up(self.config(name)?)
    }
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
    /// Show that a cluster works, in a table.
    Demo(demo::Args),
    /// Compare with what ovn-kubernetes does for the same objects.
    Golden(golden::Args),
    /// Add and delete many pods at once, and look for what is left.
    Churn(churn::Args),
    /// Give it bad input and take away what it needs, and look for clear errors, nothing left behind, and healing.
    Hardship(hardship::Args),
    /// Let real nodes live: many pods at once, restarts, crashes, a drain, a reboot, broken files, full disks.
    Life(life::Args),
    /// On the datapath of this machine's kernel: traffic, a policy, the programs, the fast path.
    Kernel(kernel::Args),
    /// Count the instructions of round trips, in a virtual machine that counts them.
    Icount(icount::Args),
    /// Test the laws of the fast path on a running cluster: never more than OVS allows, and what happens when parts die.
    Laws(laws::Args),
    /// Show that what arrives by the flow cache is what arrives through OVS, and that nobody uses another's entry.
    Exact(exact::Args),
    /// Fill a control plane with thousands of pods on nodes that exist as objects only, take away what it needs, and look for what it misses.
    Scale(scale::Args),
    /// End every task and thread of agent and controller, and see the process end, come back, and nothing lost.
    Supervise(supervise::Args),
    /// Change the uplink of nodes as real machines' changes: gateways, addresses, leases, flushed tables, a lost API server.
    Uplink(uplink::Args),
    /// The traffic tool.
    #[command(subcommand)]
    Probe(probe::Args),
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
        let or = |default: &str| name.clone().unwrap_or_else(|| default.to_owned());
        let name = or("bed");
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
            Verb::Status => status(&open()?)?,
            Verb::Kubeconfig => ui::say(open()?.config().kubeconfig("admin").display()),
            Verb::Pod(verb) => return verb.run(&open()?),
            Verb::Kubectl { args } => return run(open()?.kubectl_command()?.args(args)),
            Verb::Exec { network, host, command } => {
                let (program, args) = command.split_first().context("no command")?;
                let bed = open()?;
                let host = bed.host(&host);
                let mut command =
                    if network { host.network_command(program) } else { host.command(program) }?;
                return run(command.args(args));
            }
            Verb::Restart { host, process } => open()?.host(&host).restart(&process)?,
            Verb::Reboot { node } => open()?.reboot(&node)?,
            Verb::Verify => ui::say(open()?.verified()?),
            Verb::Demo(args) => return verdict(args.run(&or("demo"))?),
            Verb::Golden(args) => return verdict(args.run(&or("golden"))?),
            Verb::Churn(args) => return verdict(args.run(&or("churn"))?),
            Verb::Hardship(args) => return verdict(args.run(&or("hardship"))?),
            Verb::Life(args) => return verdict(args.run(&or("life"))?),
            Verb::Kernel(args) => return verdict(args.run(&or("kernel"))?),
            Verb::Icount(args) => args.run(&or("icount"))?,
            Verb::Laws(args) => return verdict(args.run(&or("laws"))?),
            Verb::Exact(args) => return verdict(args.run(&or("exact"))?),
            Verb::Scale(args) => return verdict(args.run(&or("scale"))?),
            Verb::Supervise(args) => return verdict(args.run(&or("supervise"))?),
            Verb::Uplink(args) => return verdict(args.run(&or("uplink"))?),
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

/// Runs a program in the foreground and takes over its exit code.
pub(crate) fn run(command: &mut Command) -> Result<ExitCode> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs an asynchronous part on a small runtime, with logging.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    // Both of the libraries' providers may be compiled in; a second call finds the first one's choice.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("SLIPSTREAM_LOG").unwrap_or_else(|_| "info".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).try_init();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(work)
}

fn leftovers(name: &str) -> Result<ExitCode> {
    let left = crate::bed::leftovers::find(&Config::new(name, 1)?)?;
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
