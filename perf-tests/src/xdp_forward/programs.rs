//! The benchmark's own programs.

use anyhow::{Context, Result};
use aya::programs::xdp::XdpMode;
use aya::{Ebpf, EbpfLoader};

use crate::fastpath::OBJECT;
use crate::live_frames::xdp;

/// A program that drops everything, on an interface.
pub(super) fn discarding(interface: &str) -> Result<Ebpf> {
    let mut programs = EbpfLoader::new().load(OBJECT).context("the benchmark's programs")?;
    let discard = xdp(&mut programs, "discard")?;
    discard.load()?;
    discard.attach(interface, XdpMode::Driver).with_context(|| interface.to_owned())?;
    Ok(programs)
}
