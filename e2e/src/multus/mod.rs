//! Multus, on real nodes: it is what the container runtime calls. Slipstream has the cluster's network, or another plugin has it and
//! Slipstream provides virtual networks alone. Pods get every interface that they ask for, of ours and of others, or none; and nothing is left.

mod interfaces;
mod life;
mod outside;
mod scene;
mod upstream;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use testbed::cluster::Shape;
use testbed::cluster::config::Runtime;

use crate::harness::{Case, Group, Program, Settings, flags};
use scene::Scene;

/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(300);

/// One part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Pods with interfaces of ours and of another plugin.
    Interfaces,
    /// What the node and the database have of the role, and have not.
    Role,
    /// A network that reaches the outside.
    Outside,
    /// Bad input, and what heals it.
    Waiting,
    /// The agent is killed while pods come and go.
    Agent,
    /// Many pods at once, deleted at once.
    Many,
    /// Multus' own end-to-end cases.
    Upstream,
}

/// On what to play.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    shape: Shape,
}

/// Both roles, each on one of the datapaths.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("multus", Settings::from_environment())
        .with(flags::<Args>("--multus default --datapath ebpf").group("default", "multus-default"))
        .with(flags::<Args>("--multus secondary --datapath ovs").group("secondary", "multus-secondary"))
        .main()
}

impl Args {
    /// All trials, on a cluster of that name.
    #[must_use]
    pub fn group(mut self, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        self.shape.runtime = Runtime::Containerd;
        let cases = [
            ("interfaces", Part::Interfaces),
            ("role", Part::Role),
            ("outside", Part::Outside),
            ("waiting", Part::Waiting),
            ("agent", Part::Agent),
            ("many", Part::Many),
            ("upstream", Part::Upstream),
        ];
        let cases = cases.map(|(name, part)| Case::new(name, LIMIT, part)).to_vec();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| {
                let scene = Scene::set(bed)?;
                jobs.each(|part, checks| match part {
                    Part::Interfaces => interfaces::check(&scene, checks),
                    Part::Role => interfaces::role(&scene, checks),
                    Part::Outside => outside::check(&scene, checks),
                    Part::Waiting => waiting::check(&scene, checks),
                    Part::Agent => life::agent(&scene, checks),
                    Part::Many => life::many(&scene, checks),
                    Part::Upstream => upstream::check(&scene, checks),
                });
                Ok(())
            })
        })
    }
}
