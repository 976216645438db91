//! What arrives by the flow cache is what arrives through OVS, byte for byte, between every pair of sides; no pod gets a packet by the cache
//! entry of another pod; what enters OVS before a change teaches nothing after it; and no packet that comes out of OVS is taken for
//! another one.
//!
//! Three groups of trials, each on a cluster of its own: `compared` and `pods`, some of which concern times, and `sides`.

mod answers;
mod bytes;
mod cases;
mod checksum;
mod forge;
mod frame;
mod held;
mod marks;
mod mirror;
mod pairs;
mod race;
mod scene;
mod segments;
mod spoof;
mod tap;
mod tunnel;
mod warm_up;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::harness::Checks;
use crate::harness::{Case, Group, Jobs, Program, Settings, bring_up, flags};
use bytes::Pass;
use scene::Scene;
use testbed::cluster::Bed;
use testbed::cluster::config::{Config, Datapath};

/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The same packets by the cache and through OVS.
    Bytes,
    /// A pod sends what another pod's cached flow looks like.
    Spoof,
    /// Geneve packets made by hand on the underlay.
    Tunnel,
    /// Geneve packets that a pod sends.
    Forge,
    /// Packets inside OVS while something changes.
    Race,
    /// The same packets by the cache and through OVS, between every pair of sides.
    Pairs,
    /// Packets that OVN holds back until a next hop answers.
    Held,
    /// What OVN answers itself.
    Answers,
    /// Senders that write what looks like the fast path's numbers.
    Marks,
    /// Mirrors of OVS.
    Mirror,
}

/// Which cluster a part is played on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Pods alone, after a second cluster without eBPF.
    Compared,
    /// Pods alone.
    Pods,
    /// Pods, the node's own ports and the outside.
    Sides,
}

/// Where the fast path would break its promises on purpose, to show that the tests see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sabotage {
    /// The agents ignore changes of the flow table.
    NoBump,
}

impl Part {
    const ALL: &'static [Self] = &[
        Self::Bytes,
        Self::Spoof,
        Self::Tunnel,
        Self::Forge,
        Self::Race,
        Self::Pairs,
        Self::Held,
        Self::Answers,
        Self::Marks,
        Self::Mirror,
    ];

    fn stage(self) -> Stage {
        match self {
            Self::Bytes => Stage::Compared,
            Self::Spoof | Self::Tunnel | Self::Forge | Self::Race => Stage::Pods,
            Self::Pairs | Self::Held | Self::Answers | Self::Marks | Self::Mirror => Stage::Sides,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Spoof => "spoof",
            Self::Tunnel => "tunnel",
            Self::Forge => "forge",
            Self::Race => "race",
            Self::Pairs => "pairs",
            Self::Held => "held",
            Self::Answers => "answers",
            Self::Marks => "marks",
            Self::Mirror => "mirror",
        }
    }
}

/// What to test.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// A control: what must make the test fail.
    #[arg(long, value_enum, hide = true)]
    sabotage: Option<Sabotage>,
}

/// All parts.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("flow_cache_equivalence", Settings::from_environment())
        .with_all(flags::<Args>("").groups("equivalence"))
        .main()
}

impl Args {
    /// A trial for each part. Those between pods alone are on a cluster of that name, but for `bytes`, which has one of its own and before
    /// it one without eBPF. The others have a further cluster.
    #[must_use]
    pub fn groups(self, cluster: &str) -> Vec<Group> {
        let named = |part: &str| format!("{cluster}-{part}");
        vec![
            self.clone().compared(&named("bytes"), &named("ovs")),
            self.clone().on_one(Stage::Pods, "pods", cluster),
            self.on_one(Stage::Sides, "sides", &named("sides")),
        ]
    }

    fn cases(&self, stage: Stage) -> Vec<Case<Part>> {
        let wanted =
            |part: &&Part| part.stage() == stage && (self.only.is_empty() || self.only.contains(part));
        Part::ALL.iter().filter(wanted).map(|&part| Case::new(part.name(), LIMIT, part)).collect()
    }

    fn compared(self, cluster: &str, plain: &str) -> Group {
        let (name, plain) = (cluster.to_owned(), plain.to_owned());
        let clusters = vec![name.clone(), plain.clone()];
        Group::new("compared", self.cases(Stage::Compared), clusters, move |settings, jobs| {
            let plain = self::plain(&plain)?;
            settings
                .on_cluster(config(&name, Datapath::Ebpf)?, jobs, |bed, jobs| self.play(bed, &plain, jobs))
        })
    }

    fn on_one(self, stage: Stage, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        Group::new(prefix, self.cases(stage), vec![name.clone()], move |settings, jobs| {
            let nothing = Pass::default();
            settings
                .on_cluster(config(&name, Datapath::Ebpf)?, jobs, |bed, jobs| self.play(bed, &nothing, jobs))
        })
    }

    fn play(&self, bed: &Bed, plain: &Pass, jobs: &mut Jobs<Part>) -> Result<()> {
        let environment: &[(&str, &str)] = match self.sabotage {
            Some(Sabotage::NoBump) => &[("SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS", "1")],
            None => &[],
        };
        let mut scene = Scene::new(bed, environment)?;
        jobs.each(|part, checks| match part {
            Part::Bytes => compare(&mut scene, plain, checks),
            Part::Spoof => spoof::run(&mut scene, checks),
            Part::Race => race::run(&mut scene, checks),
            Part::Tunnel => tunnel::run(&mut scene, checks),
            Part::Forge => forge::run(&mut scene, checks),
            Part::Pairs => pairs::run(&mut scene, checks),
            Part::Held => held::run(&mut scene, checks),
            Part::Answers => answers::run(&mut scene, checks),
            Part::Marks => marks::run(&mut scene, checks),
            Part::Mirror => mirror::run(&mut scene, checks),
        });
        Ok(())
    }
}

/// Two nodes with both families.
fn config(name: &str, datapath: Datapath) -> Result<Config> {
    Ok(Config { datapath, ..Config::new(name, 2)? }.with_dual_stack())
}

/// What comes of all cases on a cluster without eBPF.
fn plain(name: &str) -> Result<Pass> {
    let bed = bring_up(config(name, Datapath::Ovs)?)?;
    let pass = Scene::new(&bed, &[]).and_then(|mut scene| bytes::slow(&mut scene));
    bed.finish(pass.is_ok())?;
    pass
}

fn compare(scene: &mut Scene<'_>, plain: &Pass, checks: &mut Checks) -> Result<()> {
    let fast = bytes::fast(scene)?;
    scene.path("ovs")?;
    let switched = bytes::slow(scene);
    scene.path("auto")?;
    let switched = switched?;
    ensure!(fast.addresses == plain.addresses, "the pods of the two clusters have not the same addresses");
    bytes::compare(scene, [&fast, &switched, plain], checks);
    Ok(())
}
