//! The demonstration's table as a test: every row holds, with eBPF and without, with one family and with two. Then every way of a connection:
//! with eBPF the flow cache carries it.

use std::process::ExitCode;
use std::time::Duration;

use crate::demo;
use testbed::cluster::Shape;
use testbed::cluster::config::Datapath;
use testbed::ui::Progress;

use crate::harness::{Case, Group, Program, Settings, flags};
use crate::{new_service, replaced_backend, rolling_update, service_path, ways};

/// How long the demonstration may take.
const LIMIT: Duration = Duration::from_secs(300);

/// One part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The demonstration's table.
    Traffic,
    /// Every way of a connection.
    Ways,
    /// A service whose backend is replaced.
    Replaced,
    /// A service that is made while an agent is away.
    New,
    /// A service whose backends come and go.
    Rolling,
    /// A service that leaves the flow cache and comes back.
    ServicePath,
}

/// On what to demonstrate.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    shape: Shape,
}

/// All four clusters.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("demonstration", Settings::from_environment())
        .with(flags::<Args>("--datapath ebpf").group("ebpf", "demo-ebpf"))
        .with(flags::<Args>("--datapath ovs").group("ovs", "demo-ovs"))
        .with(flags::<Args>("--dual-stack --datapath ebpf").group("dual_stack_ebpf", "demo-ebpf-6"))
        .with(flags::<Args>("--dual-stack --datapath ovs").group("dual_stack_ovs", "demo-ovs-6"))
        .main()
}

impl Args {
    /// Four trials, on a cluster of that name, one more with one family, and one where there is a flow cache.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        let mut cases = vec![
            Case::new("traffic", LIMIT, Part::Traffic),
            Case::new("ways", LIMIT, Part::Ways),
            Case::new("replaced_backend", LIMIT, Part::Replaced),
            Case::new("rolling_update", LIMIT, Part::Rolling),
        ];
        if !self.shape.dual_stack {
            cases.push(Case::new("new_service", LIMIT, Part::New));
        }
        if self.shape.datapath != Datapath::Ovs {
            cases.push(Case::new("service_path", LIMIT, Part::ServicePath));
        }
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            let config = self.shape.config(&name)?;
            let ebpf = config.datapath == Datapath::Ebpf;
            settings.on_cluster(config, jobs, |bed, jobs| {
                let mut played = false;
                jobs.each(|part, checks| {
                    // The ways lead to its pods.
                    if !std::mem::replace(&mut played, true) {
                        demo::play(bed, &Progress::new(), checks)?;
                    }
                    match part {
                        Part::Traffic => Ok(()),
                        Part::Ways => ways::check(bed, ebpf, checks),
                        Part::Replaced => replaced_backend::check(bed, checks),
                        Part::New => new_service::check(bed, checks),
                        Part::Rolling => rolling_update::check(bed, checks),
                        Part::ServicePath => service_path::check(bed, checks),
                    }
                });
                Ok(())
            })
        })
    }
}
