//! The benchmark's own programs.

use anyhow::{Context, Result};
use aya::programs::{Xdp, xdp::XdpMode};
use aya::{Ebpf, EbpfLoader};

use crate::fastpath::OBJECT;

/// A program that drops everything, on an interface.
pub(super) fn discarding(interface: &str) -> Result<Ebpf> {
    let mut programs = EbpfLoader::new().load(OBJECT).context("the benchmark's programs")?;
    let discard = xdp(&mut programs, "discard")?;
    discard.load()?;
    discard.attach(interface, XdpMode::Driver).with_context(|| interface.to_owned())?;
    Ok(programs)
}

/// One of them, by its name.
pub(super) fn xdp<'p>(programs: &'p mut Ebpf, name: &str) -> Result<&'p mut Xdp> {
    let program = programs.program_mut(name).with_context(|| {
        format!("no program {name}: built without an eBPF toolchain; run `cargo xtask setup`")
    })?;
    Ok(program.try_into()?)
}
