//! Who reaches what by which address of a service, who answers, whom the answerer sees, and whether the flow cache carries it: a generated
//! matrix with one table of expectations for both datapaths.

mod cell;
mod judge;
mod objects;
mod oracle;
mod play;
mod restart;
mod scene;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use crate::harness::Checks;
use anyhow::{Context, Result, bail, ensure};
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::cluster::config::{Config, Datapath, Runtime};

use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use cell::Target;
use clap::builder::PossibleValuesParser;
use scene::Scene;

/// How long a trial may take; the first one waits for OVN too. On an emulated machine most cells are called twice.
const LIMIT: Duration = Duration::from_secs(300);

/// The addresses of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    ClusterIp,
    NodePort,
    HostPort,
    ExternalIp,
    LoadBalancer,
}

/// A trial.
#[derive(Clone, Copy, Debug)]
enum Trial {
    /// All cells with such addresses, of IPv4 or IPv6.
    Cells(Addresses, bool),
    /// UDP goes on while agents are replaced.
    Restart,
}

/// On what to play it.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these trials.
    #[arg(long, value_parser = PossibleValuesParser::new(TRIALS.map(|(name, _)| name)))]
    only: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

/// Both clusters.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("service_matrix", Settings::from_environment())
        .with(flags::<Args>("--dual-stack --datapath ebpf").group("ebpf", "matrix-ebpf"))
        .with(flags::<Args>("--dual-stack --datapath ovs").group("ovs", "matrix-ovs"))
        .main()
}

/// All trials, by name.
const TRIALS: [(&str, Trial); 11] = [
    ("ipv4::cluster_ip", Trial::Cells(Addresses::ClusterIp, false)),
    ("ipv4::node_port", Trial::Cells(Addresses::NodePort, false)),
    ("ipv4::host_port", Trial::Cells(Addresses::HostPort, false)),
    ("ipv4::external_ip", Trial::Cells(Addresses::ExternalIp, false)),
    ("ipv4::load_balancer", Trial::Cells(Addresses::LoadBalancer, false)),
    ("ipv6::cluster_ip", Trial::Cells(Addresses::ClusterIp, true)),
    ("ipv6::node_port", Trial::Cells(Addresses::NodePort, true)),
    ("ipv6::host_port", Trial::Cells(Addresses::HostPort, true)),
    ("ipv6::external_ip", Trial::Cells(Addresses::ExternalIp, true)),
    ("ipv6::load_balancer", Trial::Cells(Addresses::LoadBalancer, true)),
    ("restart", Trial::Restart),
];

impl Addresses {
    fn take(self, target: Target) -> bool {
        match target {
            Target::ClusterIp => self == Self::ClusterIp,
            Target::NodePort(_) => self == Self::NodePort,
            Target::HostPort => self == Self::HostPort,
            Target::ExternalIp(_) => self == Self::ExternalIp,
            Target::LoadBalancer(_) => self == Self::LoadBalancer,
        }
    }
}

impl Args {
    /// Ten trials of the matrix and one more, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        let is_wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let cases = TRIALS.into_iter().filter(|(name, _)| is_wanted(name));
        let cases = cases.map(|(name, trial)| Case::new(name, LIMIT, trial)).collect();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            let config = self.shape.config(&name)?;
            fits(&config)?;
            settings.on_cluster(config, jobs, play_all)
        })
    }
}

/// Whether the matrix can be played on such a cluster.
fn fits(config: &Config) -> Result<()> {
    ensure!(config.dual_stack, "the matrix has both families: --dual-stack");
    ensure!(config.nodes >= 2, "the matrix has two nodes, not {}", config.nodes);
    ensure!(config.runtime == Runtime::Netns, "the matrix has servers of its own: --runtime netns");
    Ok(())
}

fn play_all(bed: &Bed, jobs: &mut Jobs<Trial>) -> Result<()> {
    let config = bed.config();
    let ebpf = config.datapath == Datapath::Ebpf;
    let mut scene: Option<Scene<'_>> = None;
    let mut set = false;
    jobs.each(|trial, checks: &mut Checks| {
        if !std::mem::replace(&mut set, true) {
            let mut new = Scene::set(bed).context("the scene")?;
            play::settle(&mut new)?;
            scene = Some(new);
        }
        let Some(scene) = &mut scene else { bail!("there is no scene: see the first trial") };
        match *trial {
            Trial::Cells(addresses, six) => {
                play::check(scene, ebpf, six, |target| addresses.take(target), checks)
            }
            Trial::Restart => restart::check(scene, checks),
        }
    });
    match scene {
        Some(scene) => scene.clear(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_is_in_one_trial() {
        for cell in cell::cells().0 {
            let plays = |(_, trial): &&(&str, Trial)| match trial {
                Trial::Cells(addresses, six) => *six == cell.six && addresses.take(cell.target),
                Trial::Restart => false,
            };
            assert_eq!(TRIALS.iter().filter(plays).count(), 1, "{cell}");
        }
        let names: BTreeSet<_> = TRIALS.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), TRIALS.len());
    }

    #[test]
    fn a_cluster_without_ipv6_is_refused_by_words() {
        let config = Config::new("t", 2).unwrap();
        assert!(fits(&config).unwrap_err().to_string().contains("--dual-stack"));
        assert!(fits(&config.with_dual_stack()).is_ok());
    }
}
