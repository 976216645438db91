//! `testbed icount`: how many instructions a round trip takes on each path, on the datapath of this machine's kernel.
//!
//! It only makes sense where an instruction takes a nanosecond on every clock: in a virtual machine with one processor that
//! counts instructions (`cargo xtask vm-test --icount`). Then the median time of a round trip is the number of instructions of
//! client, server and everything between them.

mod reference;
mod run;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::bed::config::{Datapath, OvsDatapath};
use crate::cli::Shape;
use crate::ui::{Progress, say};

/// `testbed icount`.
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

impl Args {
    /// Runs it on a cluster of that name.
    pub fn run(self, name: &str) -> Result<()> {
        let Self { out, count, repeat, mut shape } = self;
        shape.ovs_datapath = OvsDatapath::System;
        shape.datapath = Datapath::Ebpf;
        let progress = Progress::new();
        let bed = shape.bring_up(name)?;
        let mut measure = run::Measure { bed: &bed, count, repeat, progress: &progress, rows: Vec::new() };
        let outcome = measure.everything();
        let rows = measure.rows;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        // What was measured before something failed is worth keeping.
        let figures = Figures { kernel, rows };
        fs::write(&out, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", out.display()))?;
        bed.finish(outcome.is_ok())?;
        say(format_args!("{} figures are in {}", figures.rows.len(), out.display()));
        outcome
    }
}
