//! `cargo xtask bench xdp-forward`: what one core forwards of a node port whose backend is on another node.
//!
//! Frames are the kernel's live frames (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`): they are at an interface as if its driver
//! had received them, in batches, and whatever is decided is done. On each lane a small program writes the frame anew, and hands it
//! to `xdp_uplink`, or to the kernel, where `from_uplink` or the node's netfilter gets it. Programs and rules are in namespaces of their
//! own; OVS is played by [`node`].
//!
//! Frames leave by a veth. `--through` says what is at its other end: nothing (the frame is dropped as it leaves, so that only the
//! forwarding is measured), or a program that drops it, which costs all lanes the way through the veth.

mod frames;
mod kernel;
mod lane;
mod node;
mod programs;

use std::io::Write;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::time::ClockId;

use lane::{Lane, Slice};

/// Where bpffs is mounted, in a mount namespace of our own.
const BPFFS: &str = "/sys/fs/bpf";

/// Flags of `xdp-forward`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Rounds; in each every lane runs once, in an order that turns.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Frames of one lane in one round.
    #[arg(long, default_value_t = 200_000)]
    frames: u32,
    /// CPU to run on.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Send the frames through the veth to a program that drops them.
    #[arg(long)]
    through: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("new namespaces, as root")?;
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("private mounts")?;
        mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none).context("bpffs")?;
        pin_to(self.cpu)?;
        let node = node::Node::new(self.through)?;
        let mut kernel = kernel::Kernel::new(self.through)?;
        let mut lanes = vec![
            Lane::xdp(&node, "XDP, into the tunnel", frames::asked())?,
            Lane::xdp(&node, "XDP, out of the tunnel", frames::answered_in_tunnel())?,
            Lane::tc(&node, "TC, into the tunnel", frames::asked())?,
            Lane::tc(&node, "TC, out of the tunnel", frames::answered_in_tunnel())?,
            kernel.lane()?,
            Lane::alone(&node, frames::asked())?,
        ];
        // Without a veth's other end all is done in our own time, which does not have that of others in it.
        let clock = if self.through { ClockId::CLOCK_MONOTONIC } else { ClockId::CLOCK_THREAD_CPUTIME_ID };
        for round in 0..self.rounds {
            for at in 0..lanes.len() {
                let at = (at + round) % lanes.len();
                // Kept young: an entry that is due for its refresh takes another way.
                node.learn()?;
                let slice = lanes[at].run(self.frames, clock)?;
                lanes[at].slices.push(slice);
            }
        }
        report(&lanes)
    }
}

fn pin_to(cpu: usize) -> Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).context("pin to a CPU")
}

fn report(lanes: &[Lane<'_>]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<24} {:>12} {:>10}", "lane", "packets/s", "ns each")?;
    for lane in lanes {
        let nanoseconds = median(lane.slices.iter().map(|slice| slice.nanoseconds));
        writeln!(out, "{:<24} {:>12.0} {:>10.1}", lane.name, 1e9 / nanoseconds, nanoseconds)?;
    }
    let ratio = |fast: usize, slow: usize| {
        let of = |(fast, slow): (&Slice, &Slice)| slow.nanoseconds / fast.nanoseconds;
        let all: Vec<f64> = lanes[fast].slices.iter().zip(&lanes[slow].slices).map(of).collect();
        (median(all.iter().copied()), quantile(&all, 0.1), quantile(&all, 0.9))
    };
    for (fast, slow, what) in [
        (0, 2, "XDP / TC, into the tunnel (goal 1.5)"),
        (1, 3, "XDP / TC, out of the tunnel (goal 1.5)"),
        (0, 4, "XDP into the tunnel / nftables (goal 3)"),
        (1, 4, "XDP out of the tunnel / nftables (goal 3)"),
        (2, 4, "TC into the tunnel / nftables"),
    ] {
        let (middle, low, high) = ratio(fast, slow);
        writeln!(out, "{what}: {middle:.2} ({low:.2} to {high:.2} in 80 % of the rounds)")?;
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&values.collect::<Vec<_>>(), 0.5)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a short list"
)]
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Runs a command line in our namespaces.
fn sh(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let mut command = testbed::exec::command(words.next().unwrap_or_default());
    testbed::exec::output(command.args(words)).with_context(|| line.to_owned()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_places_in_the_sorted_list() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert!((median(values.into_iter()) - 3.0).abs() < 1e-9);
        assert!((quantile(&values, 0.0) - 1.0).abs() < 1e-9 && (quantile(&values, 1.0) - 5.0).abs() < 1e-9);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
