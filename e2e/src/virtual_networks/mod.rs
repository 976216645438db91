//! Virtual networks: pods with several interfaces reach one another on each network that both have, by the flow cache where there is one,
//! and nothing of another one; networks and pods that wait for each other; nothing is left.

mod claims;
mod definitions;
mod http;
mod legacy;
mod life;
pub(crate) mod localnet;
mod peers;
mod policies;
mod primary;
mod scene;
mod traffic;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use testbed::cluster::Shape;
use testbed::cluster::config::Datapath;

use crate::harness::{Case, Group, Program, Settings, flags};
use scene::Scene;

/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(180);

/// One part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Every network, on one node and across nodes, each family and protocol.
    Matrix,
    /// Networks with the same range.
    Isolation,
    /// A pod whose default route is by another network, to the outside.
    Outside,
    /// Pods that ask for what is not there, and heal.
    Waiting,
    /// A network in use that is deleted.
    Deleted,
    /// Pods that name NetworkAttachmentDefinitions.
    Definitions,
    /// Policies of virtual networks.
    Policies,
    /// The controller's API.
    Http,
    /// Addresses that outlive pods.
    Claims,
    /// The kind that networks had before.
    Legacy,
    /// Networks that list each other.
    Peers,
    /// Networks on VLANs of a physical network.
    Localnet,
    /// A pod that asks for its address on the cluster's network.
    Primary,
    /// A pod with ten interfaces.
    Ten,
    /// The agents are killed and replaced.
    Restart,
}

/// All of them, in their order.
const TRIALS: [(&str, Part); 15] = [
    ("matrix", Part::Matrix),
    ("isolation", Part::Isolation),
    ("outside", Part::Outside),
    ("restart", Part::Restart),
    ("policies", Part::Policies),
    ("http", Part::Http),
    ("waiting", Part::Waiting),
    ("definitions", Part::Definitions),
    ("claims", Part::Claims),
    ("legacy", Part::Legacy),
    ("peers", Part::Peers),
    ("localnet", Part::Localnet),
    ("primary", Part::Primary),
    ("ten_interfaces", Part::Ten),
    ("deleted", Part::Deleted),
];

/// On what to play.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these trials.
    #[arg(long, value_parser = PossibleValuesParser::new(TRIALS.map(|(name, _)| name)))]
    only: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

/// Both datapaths, both families.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("virtual_networks", Settings::from_environment())
        .with(flags::<Args>("--dual-stack --datapath ebpf").group("ebpf", "networks-ebpf"))
        .with(flags::<Args>("--dual-stack --datapath ovs").group("ovs", "networks-ovs"))
        .main()
}

impl Args {
    /// All trials, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        let is_wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let cases = TRIALS.into_iter().filter(|(name, _)| is_wanted(name));
        let cases = cases.map(|(name, part)| Case::new(name, LIMIT, part)).collect();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            let config = self.shape.config(&name)?;
            let ebpf = config.datapath == Datapath::Ebpf;
            settings.on_cluster(config, jobs, |bed, jobs| {
                let scene = Scene::set(bed)?;
                jobs.each(|part, checks| match part {
                    Part::Matrix => traffic::matrix(&scene, ebpf, checks),
                    Part::Isolation => traffic::isolation(&scene, checks),
                    Part::Outside => traffic::outside(&scene, checks),
                    Part::Restart => life::restart(&scene, checks),
                    Part::Waiting => life::waiting(&scene, checks),
                    Part::Definitions => definitions::check(&scene, checks),
                    Part::Policies => policies::check(&scene, checks),
                    Part::Http => http::check(&scene, checks),
                    Part::Claims => claims::check(&scene, checks),
                    Part::Legacy => legacy::check(&scene, checks),
                    Part::Peers => peers::check(&scene, checks),
                    Part::Localnet => localnet::check(&scene, ebpf, checks),
                    Part::Primary => primary::check(&scene, checks),
                    Part::Ten => life::ten_interfaces(&scene, checks),
                    Part::Deleted => life::deleted(&scene, checks),
                });
                Ok(())
            })
        })
    }
}
