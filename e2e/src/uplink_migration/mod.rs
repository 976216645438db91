//! What happens to the uplink of a real machine. Its default gateway and its address change, addresses come and go, another program
//! flushes nftables, rules and routes, the API server cannot be reached. The gateway must follow the machine, and a machine's network
//! must never be lost.

mod follow;
mod lease;
mod mode;
mod pair;
mod refused;
mod second;
mod taken;
mod watchdog;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::ui::Progress;
use world::World;

/// What to run, and on what.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only scenes of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

/// How long a scene may take.
const LIMIT: Duration = Duration::from_secs(300);

/// A scene: what it is called, what must be so, and how it is played.
type Scene = (&'static str, &'static str, fn(&World<'_>) -> Result<String>);

const SCENES: &[Scene] = &[
    ("gateway", "another default gateway is followed, and the old one does not come back", follow::gateway),
    ("address", "another address of the node is followed", follow::address),
    ("flush", "nftables, rules and routes that somebody flushed come back", taken::flushed),
    (
        "mode",
        "a node in gateway mode local sends by its own stack, and in mode shared again by OVN",
        mode::run,
    ),
    ("second", "pods leave by a second uplink to the external gateways of their namespace", second::run),
    ("pair", "an address of a keepalived pair comes and goes, and is nobody's own", pair::keepalived),
    (
        "watchdog",
        "a node that loses the API server by the uplink migration gets its network back",
        watchdog::run,
    ),
    ("tunnels", "tunnel ends and lengths that cannot be are told", refused::tunnels),
    ("lease", "a leased address is refused with the reason, or kept", lease::run),
    ("late", "an address by advertisement that comes late is followed", follow::late),
];

/// All scenes.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("uplink_migration", Settings::from_environment())
        .with(flags::<Args>("--datapath ebpf").group("", "uplinks"))
        .main()
}

impl Args {
    /// A trial for each scene, on a cluster of that name.
    #[must_use]
    pub fn group(mut self, prefix: &'static str, cluster: &str) -> Group {
        let chosen = |name: &&str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let scenes = SCENES.iter().filter(|(name, ..)| chosen(name));
        let cases = scenes.map(|&scene| Case::new(scene.0, LIMIT, scene)).collect();
        let name = cluster.to_owned();
        // The scenes are about both families.
        self.shape.dual_stack = true;
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, play)
        })
    }
}

fn play(bed: &Bed, jobs: &mut Jobs<Scene>) -> Result<()> {
    let progress = Progress::new();
    let world = World::new(bed)?;
    progress.done("pods and a service");
    jobs.each(|(_, what, scene), checks| {
        let done = scene(&world).and_then(|said| world.is_well().map(|()| said));
        checks.check(what, done.map_err(|error| format!("{error:#}")));
        Ok(())
    });
    Ok(())
}
