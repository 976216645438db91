//! `testbed uplink`: what happens to the uplink of a real machine. Its default gateway and its address change, addresses come
//! and go, somebody flushes nftables, rules and routes, the API server cannot be reached. The gateway must follow the machine,
//! and a machine's network must never be lost.

mod follow;
mod lease;
mod pair;
mod refused;
mod taken;
mod watchdog;
mod world;

use anyhow::Result;

use crate::bed::Bed;
use crate::cli::Shape;
use crate::ui::{Checks, Progress, say};
use world::World;

/// `testbed uplink`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only scenes of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
    /// Use a cluster that runs already, and leave it.
    #[arg(long)]
    there: bool,
    #[command(flatten)]
    shape: Shape,
}

/// A scene: what it is called, what must be so, and how it is played.
type Scene = (&'static str, &'static str, fn(&World<'_>) -> Result<String>);

const SCENES: &[Scene] = &[
    ("gateway", "another default gateway is followed, and the old one does not come back", follow::gateway),
    ("address", "another address of the node is followed", follow::address),
    ("flush", "nftables, rules and routes that somebody flushed come back", taken::flushed),
    ("pair", "an address of a keepalived pair comes and goes, and is nobody's own", pair::keepalived),
    ("watchdog", "a node that loses the API server by the take-over gets its network back", watchdog::run),
    ("tunnels", "tunnel ends and lengths that cannot be are told", refused::tunnels),
    ("lease", "a leased address is refused with the reason, or kept", lease::run),
    ("late", "an address by advertisement that comes late is followed", follow::late),
];

impl Args {
    /// Runs it on a cluster of that name; true if every scene went well.
    pub fn run(self, name: &str) -> Result<bool> {
        let bed = if self.there {
            Bed::open(name)?
        } else {
            // The scenes are about both families.
            Shape { dual_stack: true, ..self.shape.clone() }.bring_up(name)?
        };
        let outcome = self.play(&bed);
        if self.keep || self.there {
            say(format_args!("the cluster {name} goes on running"));
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
        }
        outcome
    }

    fn play(&self, bed: &Bed) -> Result<bool> {
        let progress = Progress::new();
        let mut checks = Checks::default();
        let world = World::new(bed)?;
        progress.done("pods and a service");
        for (name, what, scene) in SCENES {
            if self.only.is_empty() || self.only.iter().any(|only| only == name) {
                let done = scene(&world).and_then(|said| world.is_well().map(|()| said));
                checks.check(what, done.map_err(|error| format!("{error:#}")));
                progress.done(name);
            }
        }
        Ok(checks.finish())
    }
}
