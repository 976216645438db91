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
use scene::Scene;

/// How long a trial may take; the first one waits for OVN too.
const LIMIT: Duration = Duration::from_secs(180);

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
    /// Only the trials whose names contain this, such as `ipv6::cluster_ip`.
    #[arg(long, default_value = "")]
    only: String,
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

impl Addresses {
    const ALL: [(&str, Self); 5] = [
        ("cluster_ip", Self::ClusterIp),
        ("node_port", Self::NodePort),
        ("host_port", Self::HostPort),
        ("external_ip", Self::ExternalIp),
        ("load_balancer", Self::LoadBalancer),
    ];

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
        let mut cases = Vec::new();
        for (family, six) in [("ipv4", false), ("ipv6", true)] {
            for (what, addresses) in Addresses::ALL {
                let trial = format!("{family}::{what}");
                if trial.contains(&self.only) {
                    cases.push(Case::new(trial, LIMIT, Trial::Cells(addresses, six)));
                }
            }
        }
        if "restart".contains(&self.only) {
            cases.push(Case::new("restart", LIMIT, Trial::Restart));
        }
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
            let trials = Addresses::ALL.iter().filter(|(_, addresses)| addresses.take(cell.target));
            assert_eq!(trials.count(), 1, "{cell}");
        }
        let names: BTreeSet<_> = Addresses::ALL.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Addresses::ALL.len());
    }

    #[test]
    fn a_cluster_without_ipv6_is_refused_by_words() {
        let config = Config::new("t", 2).unwrap();
        assert!(fits(&config).unwrap_err().to_string().contains("--dual-stack"));
        assert!(fits(&config.with_dual_stack()).is_ok());
    }
}
