//! The kernel's live frames (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18): frames that are at an interface as if its
//! driver had received them, each handed to a program.

use anyhow::{Context, Result};
use aya::programs::{TestRun as _, Xdp};
use aya::{Ebpf, TestRunAttrs, TestRunOptions};

/// Frames that are in front of a program at once, as many as a driver takes from its ring (`NAPI_POLL_WEIGHT`).
const BATCH: u32 = 64;
/// Bytes of a frame that the benchmark's programs write anew: their `FRAME`.
pub(crate) const FRONT: usize = 128;

/// The front of a frame as that constant.
pub(crate) fn front(frame: &[u8]) -> [u64; FRONT / 8] {
    let mut words = [0; FRONT / 8];
    for (word, bytes) in words.iter_mut().zip(frame.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// One of the benchmark's programs, by its name.
pub(crate) fn xdp<'p>(programs: &'p mut Ebpf, name: &str) -> Result<&'p mut Xdp> {
    let program = programs.program_mut(name).with_context(|| {
        format!("no program {name}: built without an eBPF toolchain; run `cargo xtask setup`")
    })?;
    Ok(program.try_into()?)
}

/// Hands so many copies of the frame, at this interface, to a program.
pub(crate) fn run(program: &Xdp, frame: &[u8], ifindex: u32, count: u32) -> Result<()> {
    // `struct xdp_md`: the end of the data, and the interface.
    let mut context = [0; 24];
    context[4..8].copy_from_slice(&u32::try_from(frame.len())?.to_ne_bytes());
    context[12..16].copy_from_slice(&ifindex.to_ne_bytes());
    let options = TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&context),
        repeat: count,
        attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
        ..TestRunOptions::default()
    };
    program.test_run(options).context("live frames (Linux 5.18, and the interface up)").map(drop)
}
