//! The ceiling of an overlay on veths: eBPF that redirects and does nothing else. Attached by a process inside the
//! node's namespace, which keeps the links as long as it runs.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use aya::programs::tc::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use clap::ValueEnum;
use nix::net::if_::if_nametoindex;

use super::place::{Keeper, Place};

/// The object; empty if it could not be built.
pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/slipstream-bench-ebpf"));

/// Where what comes by `eth0` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Delivery {
    /// To the other end of the veth `pod`.
    Peer,
    /// Out of the interface `pod`.
    Interface,
}

/// Attaches in a node's namespace.
pub(super) fn attach(node: &Place, delivery: Delivery) -> Result<Keeper> {
    let mut command = node.command(std::env::current_exe()?);
    let delivery = delivery.to_possible_value().context("ways of delivery have names")?;
    Keeper::start(command.args(["direct", delivery.get_name()]), "").context("programs of the direct path")
}

/// Joins `pod` and `eth0` of the namespace that we are in, until standard input ends.
pub(crate) fn keep(delivery: Delivery) -> Result<()> {
    let index = |name: &str| if_nametoindex(name).with_context(|| format!("interface {name}"));
    let mut sending = load(index("eth0")?)?;
    attach_to(&mut sending, "send", "pod")?;
    let mut delivering = load(index("pod")?)?;
    let program = if delivery == Delivery::Peer { "deliver" } else { "send" };
    attach_to(&mut delivering, program, "eth0")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "attached")?;
    out.flush()?;
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn load(to: u32) -> Result<Ebpf> {
    if OBJECT.is_empty() {
        anyhow::bail!("built without an eBPF toolchain; run `cargo xtask setup`");
    }
    EbpfLoader::new().override_global("TO", &to, true).load(OBJECT).context("cannot load the object")
}

fn attach_to(ebpf: &mut Ebpf, program: &str, interface: &str) -> Result<()> {
    let program: &mut SchedClassifier =
        ebpf.program_mut(program).with_context(|| format!("no program {program}"))?.try_into()?;
    program.load()?;
    program.attach(interface, TcAttachType::Ingress)?;
    Ok(())
}
