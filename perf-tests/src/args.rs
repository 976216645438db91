//! The command line: which scenarios run, and the hidden half that runs inside a host of the test bed.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

use crate::bed::Bed;
use crate::failover;
use crate::fastpath;
use crate::flood;
use crate::record::{self, Machine, Series};
use crate::scenario;
use crate::scenario_file::{self, Run, ScenarioFile};
use crate::xdp_forward;

/// Measures Slipstream on a test bed.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Scenarios to run, in this order.
    #[arg(value_enum, default_values_t = [Scenario::Cni, Scenario::Rows, Scenario::Scale])]
    scenarios: Vec<Scenario>,
    /// Instead of scenarios, the fast path against everything that it is held against, in five minutes: `fastpath --quick`.
    #[arg(long, conflicts_with_all = ["scenarios", "name", "pods", "burst", "scale", "ingest", "file", "rounds", "datapath", "json"])]
    quick: bool,
    /// Exit with 1 and name the series when a goal is missed.
    #[arg(long)]
    check: bool,
    /// Use this running test bed instead of a new one.
    #[arg(long)]
    name: Option<String>,
    /// Pods for each series of one pod after another.
    #[arg(long, default_value_t = 50)]
    pods: usize,
    /// Pods plugged in at once.
    #[arg(long, default_value_t = 30)]
    burst: usize,
    /// Pods on simulated nodes.
    #[arg(long, default_value_t = 2000)]
    scale: usize,
    /// Objects of each kind that `ingest` posts.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=20_000))]
    ingest: u16,
    /// Goals of the one scenario that is named: one of `cargo xtask bench scenario`, or a file; the scenario's own if none is named.
    #[arg(long = "scenario", value_name = "NAME|FILE")]
    file: Option<String>,
    /// How often the scenarios are repeated; samples are put together.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Passed to the node agents: `auto`, `ebpf` or `ovs`.
    #[arg(long, default_value = "auto")]
    datapath: String,
    /// Write all samples to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(subcommand)]
    inside: Option<Inside>,
}

/// A group of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// CNI ADD, by situation and by step.
    Cni,
    /// Pod created until its port row.
    Rows,
    /// Thousands of pods on simulated nodes.
    Scale,
    /// Pods, services and policies posted until they are in every node's flows.
    Ingest,
}

impl Scenario {
    fn run(self) -> Run {
        match self {
            Self::Cni => Run::Cni,
            Self::Rows => Run::Rows,
            Self::Scale => Run::Scale,
            Self::Ingest => Run::Ingest,
        }
    }
}

/// What is not a scenario of pods: a live cluster, the benchmark of the fast path, and parts that run inside a namespace.
#[derive(Debug, Subcommand)]
enum Inside {
    #[command(flatten)]
    Cluster(cluster_bench::Command),
    /// The fast path against OVS, against other ways to connect pods, and against its goals.
    Fastpath(fastpath::Args),
    /// What policies cost that select the pods of a connection: none, some and many of them side by side.
    PolicyScale(fastpath::PolicyArgs),
    /// What services cost with which a connection has nothing to do.
    ServiceScale(fastpath::ServiceArgs),
    /// Two builds against each other, by neighbouring slices: `cargo xtask bench compare COMMIT COMMIT` builds and compares them.
    Versions(fastpath::VersionsArgs),
    /// What it costs a connection that pods and endpoints come and go elsewhere.
    Churn(fastpath::ChurnArgs),
    /// Runs a scenario by its name or file, with flags of the command that it is one of; lists them if none is named.
    Scenario {
        #[arg(value_name = "NAME|FILE")]
        name: Option<String>,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// What running flows lose while a process of the network is dead, and when it comes back.
    Failover(failover::Args),
    /// Node ports with a backend on another node: by XDP, by TC, and by the kernel's nftables, in packets per second of one core.
    XdpForward(xdp_forward::Args),
    /// Sends small frames by an interface, as many as one core can or so many a second, where pktgen is missing: UDP, also in OVN's Geneve.
    Flood(flood::Args),
    /// One end of a load.
    #[command(hide = true)]
    Load(fastpath::LoadArgs),
    /// The programs of the path `direct`, attached until standard input ends.
    #[command(hide = true)]
    Direct {
        #[arg(value_enum)]
        delivery: fastpath::Delivery,
    },
    /// Changes elsewhere in a cluster until standard input ends.
    #[command(hide = true)]
    Elsewhere {
        #[arg(long)]
        kubeconfig: PathBuf,
        #[arg(long)]
        pods: u16,
        #[arg(long)]
        endpoints: u16,
    },
    /// The programs by themselves, in namespaces of their own.
    #[command(hide = true)]
    Alone,
    /// Runs scenarios inside a host and prints their series as JSON.
    #[command(hide = true)]
    InHost {
        #[arg(value_enum)]
        what: Scenario,
        #[arg(long)]
        kubeconfig: PathBuf,
        #[arg(long, default_value = "tcp:172.18.0.10:6641")]
        nb: String,
        #[arg(long, default_value = "n1")]
        node: String,
        #[arg(long)]
        count: usize,
        #[arg(long, default_value_t = 30)]
        burst: usize,
    },
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Self {
            scenarios,
            quick,
            check,
            name,
            pods,
            burst,
            scale,
            ingest,
            file,
            rounds,
            datapath,
            json,
            inside,
        } = self;
        if let Some(inside) = inside {
            return inside.run();
        }
        if quick {
            let check = check.then_some("--check");
            let line = ["cargo xtask bench", "fastpath", "--quick"].into_iter().chain(check);
            return Self::parse_from(line).run();
        }
        if file.is_some() && scenarios.len() != 1 {
            anyhow::bail!("--scenario has the goals of one scenario; name that one");
        }
        let files = scenarios
            .iter()
            .map(|scenario| {
                let run = scenario.run();
                ScenarioFile::of(file.as_deref().unwrap_or(run.word()), run)
            })
            .collect::<Result<Vec<_>>>()?;
        let machine = Machine::now();
        let bed = Bed::open(name.as_deref(), &datapath)?;
        let mut all: Vec<Series> = Vec::new();
        for _ in 0..rounds {
            for scenario in &scenarios {
                let (host, what, count) = match scenario {
                    Scenario::Cni => ("n1", "cni", pods),
                    Scenario::Rows => ("central", "rows", pods),
                    Scenario::Scale => ("central", "scale", scale),
                    Scenario::Ingest => ("central", "ingest", ingest.into()),
                };
                let found = bed.inside(host, what, count, burst)?;
                for series in found {
                    match all.iter_mut().find(|s| s.name == series.name) {
                        Some(known) => known.samples.extend(series.samples),
                        None => all.push(series),
                    }
                }
            }
        }
        bed.close()?;
        for file in &files {
            file.hold(&mut all, &[("burst", burst.to_string())])?;
        }
        let mut out = std::io::stdout().lock();
        let missed = record::print(&mut out, &all)?;
        if let Some(path) = json {
            let whole = serde_json::json!({"machine": machine, "datapath": datapath, "series": all});
            std::fs::write(&path, serde_json::to_vec_pretty(&whole)?)
                .with_context(|| path.display().to_string())?;
        }
        if check && !missed.is_empty() {
            anyhow::bail!("goals missed: {}", missed.join("; "));
        }
        writeln!(out, "goals missed: {}", missed.len())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Inside {
    fn run(self) -> Result<ExitCode> {
        let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
        let (what, kubeconfig, nb, node, count, burst) = match self {
            Self::Cluster(command) => return command.run(),
            Self::Fastpath(args) => return done(args.run()),
            Self::PolicyScale(args) => return done(args.run()),
            Self::ServiceScale(args) => return done(args.run()),
            Self::Versions(args) => return args.run(),
            Self::Churn(args) => return done(args.run()),
            Self::Failover(args) => return args.run(),
            Self::Scenario { name: None, .. } => {
                write!(std::io::stdout().lock(), "{}", scenario_file::list()?)?;
                return Ok(ExitCode::SUCCESS);
            }
            Self::Scenario { name: Some(name), flags } => {
                let line = scenario_file::expanded(&name, &flags)?;
                return Args::parse_from(std::iter::once("cargo xtask bench".to_owned()).chain(line)).run();
            }
            Self::Elsewhere { kubeconfig, pods, endpoints } => {
                return done(runtime()?.block_on(scenario::elsewhere::run(&kubeconfig, pods, endpoints)));
            }
            Self::XdpForward(args) => return done(args.run()),
            Self::Flood(args) => return done(args.run()),
            Self::Load(args) => return done(args.run()),
            Self::Alone => {
                let mut out = std::io::stdout().lock();
                serde_json::to_writer(&mut out, &fastpath::alone()?)?;
                writeln!(out)?;
                return Ok(ExitCode::SUCCESS);
            }
            Self::Direct { delivery } => return done(fastpath::keep_direct(delivery)),
            Self::InHost { what, kubeconfig, nb, node, count, burst } => {
                (what, kubeconfig, nb, node, count, burst)
            }
        };
        let series = runtime()?.block_on(async {
            match what {
                Scenario::Cni => scenario::cni::run(&kubeconfig, &node, count, burst).await,
                Scenario::Rows => scenario::rows::run(&kubeconfig, &nb, &node, count).await,
                Scenario::Scale => scenario::scale::run(&kubeconfig, &nb, 20, count).await,
                Scenario::Ingest => scenario::ingest::run(&kubeconfig, &nb, count).await,
            }
        })?;
        serde_json::to_writer(std::io::stdout(), &series)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_program_is_a_command_line() {
        for name in scenario_file::list().unwrap().lines().filter_map(|line| line.split(' ').next()) {
            let line = scenario_file::expanded(name, &[]).unwrap();
            let line = std::iter::once("bench".to_owned()).chain(line);
            Args::try_parse_from(line).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn quick_stands_for_one_benchmark_and_not_beside_scenarios_of_pods() {
        assert!(
            Args::try_parse_from(["bench", "--quick", "--check"]).is_ok_and(|args| args.quick && args.check)
        );
        for other in ["cni", "--rounds=2", "fastpath"] {
            let error = Args::try_parse_from(["bench", "--quick", other]).unwrap_err().to_string();
            assert!(error.contains("--quick") || error.contains("fastpath"), "{error}");
        }
    }
}
