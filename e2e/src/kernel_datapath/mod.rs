//! A cluster on the datapath of this machine's kernel, with its module `openvswitch`. Traffic, a policy
//! under traffic, the programs, and the fast path, of both families.

pub(crate) mod agent;
mod flows;
mod forgotten;
mod programs;
mod reset;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::demo;
use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use crate::virtual_networks::localnet;
use crate::ways;
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::cluster::config::{Datapath, OvsDatapath};
use testbed::ui::Progress;

/// How long a part may take, on an emulated processor some times as long.
const LIMIT: Duration = Duration::from_secs(300);

/// What to expect.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Which path the nodes must have chosen.
    #[arg(long, value_enum, default_value = "ebpf")]
    expect: Datapath,
    #[command(flatten)]
    shape: Shape,
}

/// One part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The demonstration's traffic.
    Demonstration,
    /// What the agents say of themselves, and the programs that are attached.
    Agents,
    Flows,
    /// Every way of a connection.
    Ways,
    /// Connections that connection tracking forgets.
    Forgotten,
    Reset,
    /// A virtual network on a VLAN of a physical network.
    Physical,
}

/// All parts, with eBPF; for a kernel on which the programs do not run see [`Args`].
#[must_use]
pub fn main() -> ExitCode {
    Program::new("kernel_datapath", Settings::from_environment())
        .with(flags::<Args>("").group("", "kernel"))
        .main()
}

impl Args {
    /// A trial for each part, on a cluster of that name.
    #[must_use]
    pub fn group(mut self, prefix: &'static str, cluster: &str) -> Group {
        let ebpf = self.expect == Datapath::Ebpf;
        let mut cases = vec![
            Case::new("demonstration", LIMIT, Part::Demonstration),
            Case::new("agents_and_programs", LIMIT, Part::Agents),
            Case::new("flows_and_policy", LIMIT, Part::Flows),
            Case::new("ways", LIMIT, Part::Ways),
        ];
        if ebpf {
            cases.push(Case::new("forgotten_connections", LIMIT, Part::Forgotten));
            cases.push(Case::new("long_connection_reset", LIMIT, Part::Reset));
            cases.push(Case::new("physical_network", LIMIT, Part::Physical));
        }
        let name = cluster.to_owned();
        self.shape.ovs_datapath = OvsDatapath::System;
        self.shape.dual_stack = true;
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| play(bed, ebpf, jobs))
        })
    }
}

fn play(bed: &Bed, ebpf: bool, jobs: &mut Jobs<Part>) -> Result<()> {
    let progress = Progress::new();
    let mut demonstrated = false;
    jobs.each(|part, checks| {
        // The other parts use its pods.
        if !demonstrated {
            demonstrated = true;
            demo::play(bed, &progress, checks)?;
        }
        match part {
            Part::Demonstration => {}
            Part::Agents => {
                for node in bed.config().node_names() {
                    agent::check(bed, &node, ebpf, checks);
                    if ebpf {
                        programs::check(bed, &node, checks);
                    }
                }
            }
            Part::Flows => flows::check(bed, ebpf, checks)?,
            Part::Ways => ways::check(bed, ebpf, checks)?,
            Part::Forgotten => forgotten::check(bed, checks),
            Part::Reset => reset::check(bed, checks),
            Part::Physical => localnet::on_kernel(bed, checks)?,
        }
        Ok(())
    });
    Ok(())
}
