//! The invariants of the flow cache on a running cluster of two nodes, with eBPF and without, by the same expectations: never
//! more than OVS allows, all that OVS allows, and what happens when parts die.

mod bystanders;
mod dead;
mod fallback;
mod full_node;
mod kill;
mod load_pods;
mod no_bpf;
mod random;
mod rate;
mod refresh;
pub(crate) mod scene;
mod spray;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::harness::Checks;
use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use crate::random::Random;
use node_agent::flow_cache::scope::Rule;
use testbed::cluster::Shape;
use testbed::cluster::config::Datapath;
use testbed::cluster::{Bed, start_agent_in};
use testbed::runtime::block_on;
use testbed::ui::{Progress, say};

/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(900);
/// And how long a random change.
const CHANGE: Duration = Duration::from_millis(600);

/// Where a fast path would break its promises on purpose, to show that the tests see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// The agents ignore changes of the flow table.
    NoBump,
    /// Cached flows are sent through OVS again after 10 s only, the latest that an agent allows.
    LateRefresh,
    /// Changes of flows that this rule of the scopes answers concern nothing, and cached flows are not sent through OVS before 10 s.
    Without(Rule),
}

impl Sabotage {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "no-bump" => Ok(Self::NoBump),
            "late-refresh" => Ok(Self::LateRefresh),
            _ => text.strip_prefix("without-").and_then(Rule::named).map(Self::Without).ok_or_else(|| {
                let rules = Rule::CONCERNING.map(Rule::name).join(", ");
                format!("no-bump, late-refresh, or without-RULE with one of the rules {rules}")
            }),
        }
    }

    /// Flags and environment that an agent gets for it.
    fn agent(self) -> (&'static [&'static str], Vec<(&'static str, &'static str)>) {
        match self {
            Self::NoBump => (&[], vec![("SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS", "1")]),
            Self::LateRefresh => (&["--refresh-ms=10000"], Vec::new()),
            Self::Without(rule) => {
                (&["--refresh-ms=10000"], vec![("SLIPSTREAM_TEST_WITHOUT_RULE", rule.name())])
            }
        }
    }
}

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Random changes under random flows: never more than OVS allows, and all that it allows.
    Random,
    /// The agent is killed and replaced under traffic.
    Kill,
    /// Everything in user space is dead, and OVS's flows are changed; OVS itself is dead.
    Dead,
    /// Connection tracking of cached flows stays alive.
    Refresh,
    /// The fallback table.
    Fallback,
    /// Very many flows at once, and full maps.
    Spray,
    /// Pods and services come and go elsewhere, and nobody's flows are the worse for it.
    Bystanders,
    /// A node with very many ports and cached flows, while pods and endpoints change elsewhere.
    FullNode,
    /// Requests a second of bystanders while pods come and go elsewhere. Measures; only by hand.
    Rate,
}

impl Part {
    const ALL: &'static [Self] = &[
        Self::Random,
        Self::Kill,
        Self::Dead,
        Self::Refresh,
        Self::Fallback,
        Self::Spray,
        Self::Bystanders,
        Self::FullNode,
        Self::Rate,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Kill => "kill",
            Self::Dead => "dead",
            Self::Refresh => "refresh",
            Self::Fallback => "fallback",
            Self::Spray => "spray",
            Self::Bystanders => "bystanders",
            Self::FullNode => "full_node",
            Self::Rate => "rate",
        }
    }
}

/// What to test, and how much of it.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Makes the random changes repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// How many random changes.
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// How many flows are sprayed.
    #[arg(long, default_value_t = 1_000_000)]
    flows: u32,
    /// How many ports the full node has.
    #[arg(long, default_value_t = 5_000)]
    ports: u32,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Say every change.
    #[arg(long)]
    verbose: bool,
    /// A control: what must make the test fail.
    #[arg(long, value_parser = Sabotage::parse, hide = true)]
    sabotage: Option<Sabotage>,
    #[command(flatten)]
    shape: Shape,
}

/// In nanoseconds, as arrivals have it.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// In whole milliseconds.
fn ms(nanoseconds: u64) -> u64 {
    nanoseconds / 1_000_000
}

/// What a part works with.
struct Stage<'a> {
    bed: &'a Bed,
    checks: &'a mut Checks,
    progress: &'a Progress,
    seed: u64,
    changes: usize,
    flows: u32,
    ports: u32,
    verbose: bool,
}

impl Stage<'_> {
    /// Whether packets may go by eBPF here.
    fn fast(&self) -> bool {
        self.bed.config().datapath != Datapath::Ovs
    }
}

/// The invariants as they are run all the time. Each group has clusters of its own, so that groups can run side by side.
#[must_use]
pub fn main() -> ExitCode {
    const CHANGES: &str = "--only random";
    const FAILURES: &str = "--only kill,dead,refresh,fallback";
    // By hand with 5,000 ports and 200,000 flows.
    const FULL: &str = "--only full-node --ports 1500 --flows 60000";
    let group = |prefix, cluster, line: String| flags::<Args>(&line).group(prefix, cluster);
    Program::new("flow_cache_invariants", Settings::from_environment())
        .with(group("changes_ebpf", "inv-ebpf", format!("--datapath ebpf --changes 1000 {CHANGES}")))
        .with(group("changes_ovs", "inv-ovs", format!("--datapath ovs --changes 150 {CHANGES}")))
        .with(group("failures_ebpf", "inv-failures-ebpf", format!("--datapath ebpf {FAILURES}")))
        .with(group("failures_ovs", "inv-failures-ovs", format!("--datapath ovs {FAILURES}")))
        .with(group("bystanders_ebpf", "inv-by-ebpf", "--datapath ebpf --only bystanders".to_owned()))
        .with(group("full_node_ebpf", "inv-full-ebpf", format!("--datapath ebpf {FULL}")))
        .with(group("spray_ebpf", "inv-spray-ebpf", "--datapath ebpf --only spray".to_owned()))
        .with(group("spray_ovs", "inv-spray-ovs", "--datapath ovs --only spray --flows 200000".to_owned()))
        .main()
}

impl Args {
    /// A trial for each part, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let by_itself = |part: &Part| self.only.is_empty() && ![Part::FullNode, Part::Rate].contains(part);
        let parts = Part::ALL.iter().filter(|part| by_itself(part) || self.only.contains(part));
        let changes = CHANGE * u32::try_from(self.changes).unwrap_or(u32::MAX);
        let limit = |part: Part| if part == Part::Random { LIMIT.max(changes) } else { LIMIT };
        let cases = parts.map(|&part| Case::new(part.name(), limit(part), part)).collect();
        let name = cluster.to_owned();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| self.play(bed, jobs))
        })
    }

    fn play(&self, bed: &Bed, jobs: &mut Jobs<Part>) -> Result<()> {
        let seed = self.seed.unwrap_or_else(Random::seed);
        say(format_args!("seed {seed}"));
        let progress = Progress::new();
        if let Some((flags, environment)) = self.sabotage.map(Sabotage::agent) {
            for node in bed.config().node_names() {
                bed.host(&node).kill("node-agent")?;
                start_agent_in(bed, &node, flags, &environment)?;
            }
        }
        bed.enter_network("central")?;
        jobs.each(|part, checks| {
            let mut stage = Stage {
                bed,
                checks,
                progress: &progress,
                seed,
                changes: self.changes,
                flows: self.flows,
                ports: self.ports,
                verbose: self.verbose,
            };
            match part {
                Part::Random => block_on(random::run(&mut stage)),
                Part::Kill => block_on(kill::run(&mut stage)),
                Part::Dead => block_on(dead::run(&mut stage)),
                Part::Refresh => block_on(refresh::run(&mut stage)),
                Part::Fallback => block_on(fallback::run(&mut stage)),
                Part::Spray => block_on(spray::run(&mut stage)),
                Part::Bystanders => block_on(bystanders::run(&mut stage)),
                Part::FullNode => block_on(full_node::run(&mut stage)),
                Part::Rate => block_on(rate::run(&mut stage)),
            }
        });
        Ok(())
    }
}
