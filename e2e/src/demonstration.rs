//! The demonstration's table as a test: every row holds, with eBPF and without, with one family and with two.

use std::process::ExitCode;
use std::time::Duration;

use testbed::cluster::Shape;
use testbed::demo;
use testbed::ui::Progress;

use crate::harness::{Case, Group, Program, Settings, flags};

/// How long the demonstration may take.
const LIMIT: Duration = Duration::from_secs(300);

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
    /// One trial, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        let cases = vec![Case::new("traffic", LIMIT, ())];
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| {
                jobs.each(|(), checks| demo::play(bed, &Progress::new(), checks));
                Ok(())
            })
        })
    }
}
