//! Sockets, addresses, and the CPU of a thread.

mod address;
mod batch;
mod sockets;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub(crate) use address::{Family, resolve, with_port};
pub(crate) use batch::{BATCH, Received, Receiver, Sender};
pub(crate) use sockets::{connect, listen, udp_client, udp_server};

/// Keeps this thread, and those that it starts from now on, on one CPU.
///
/// # Errors
/// There is no such CPU, or this process may not use it.
pub(crate) fn pin(cpu: u32) -> Result<()> {
    let mut set = CpuSet::new();
    let at = usize::try_from(cpu)?;
    set.set(at).with_context(|| format!("CPU {cpu}: no such number"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| {
        format!("CPU {cpu}: this machine has no such CPU, or does not let this process use it")
    })
}

/// Lets this thread run on every CPU again.
pub(crate) fn unpin() {
    let mut set = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _ = set.set(cpu);
    }
    // What this process may not use is left out by the kernel.
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}
