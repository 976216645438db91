//! How many instructions a round trip takes on each path, on the datapath of this machine's kernel.
//!
//! It only makes sense where an instruction takes a nanosecond on every clock: in a virtual machine with one processor that
//! counts instructions (`cargo xtask vm-test --icount`). Then the median time of a round trip is the number of instructions of
//! client, server and everything between them.

mod reference;
mod run;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::harness::{Case, Group, Program, Settings, flags};
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::cluster::config::{Datapath, OvsDatapath};
use testbed::ui::{Progress, say};

/// How long all measurements may take: the processor is emulated.
const LIMIT: Duration = Duration::from_secs(1700);

/// What to measure, and where the figures go.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the figures go, as JSON.
    #[arg(long)]
    out: PathBuf,
    /// Round trips of one measurement.
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// Measurements of one row; where packets go through OVS, its table of flows is emptied between them.
    #[arg(long, default_value_t = 5)]
    repeat: u32,
    /// Measure these paths only, such as `host,node,ovs-node`; default: all.
    #[arg(long, value_delimiter = ',')]
    paths: Vec<String>,
    /// Run this program before and after each measurement, with the row's name and `before` or `after`: where a profile begins and
    /// ends.
    #[arg(long)]
    around: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// Path and kind of load.
    name: String,
    /// Instructions of a round trip: the lowest of the medians of the measurements.
    instructions: u64,
    /// The medians themselves.
    all: Vec<u64>,
}

/// The file.
#[derive(Debug, Serialize)]
struct Figures {
    kernel: String,
    rows: Vec<Row>,
}

/// The usual measurements; the figures go to `instruction_count.json` in the current directory.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("instruction_count", Settings::from_environment())
        .with(flags::<Args>("--out instruction_count.json").group("", "icount"))
        .main()
}

impl Args {
    /// One trial that measures everything, on a cluster of that name.
    #[must_use]
    pub fn group(mut self, prefix: &'static str, cluster: &str) -> Group {
        let name = cluster.to_owned();
        self.shape.ovs_datapath = OvsDatapath::System;
        self.shape.datapath = Datapath::Ebpf;
        let cases = vec![Case::new("every_path", LIMIT, ())];
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| {
                jobs.each(|(), _| self.measure(bed));
                Ok(())
            })
        })
    }

    fn measure(&self, bed: &Bed) -> Result<()> {
        let Self { out, count, repeat, paths, around, .. } = self;
        let progress = Progress::new();
        let mut measure = run::Measure {
            bed,
            count: *count,
            repeat: *repeat,
            paths,
            around: around.as_deref(),
            progress: &progress,
            rows: Vec::new(),
        };
        let outcome = measure.everything();
        let rows = measure.rows;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        // What was measured before something failed is worth keeping.
        let figures = Figures { kernel, rows };
        fs::write(out, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", out.display()))?;
        say(format_args!("{} figures are in {}", figures.rows.len(), out.display()));
        outcome
    }
}
