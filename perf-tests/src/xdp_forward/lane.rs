//! One way of forwarding, and live frames that take it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aya::maps::ProgramArray;
use aya::{Ebpf, EbpfLoader};

use nix::time::{ClockId, clock_gettime};

use super::node::Node;
use crate::fastpath::OBJECT;
use crate::live_frames::{self, xdp};

/// The time of one slice.
pub(super) struct Slice {
    /// Time of one frame.
    pub(super) nanoseconds: f64,
}

/// Says how many frames a lane has forwarded until now.
type Counter<'a> = Box<dyn Fn() -> Result<u64> + 'a>;

/// A way of forwarding.
pub(super) struct Lane<'a> {
    pub(super) name: &'static str,
    pub(super) slices: Vec<Slice>,
    programs: Ebpf,
    frame: Vec<u8>,
    ifindex: u32,
    forwarded: Counter<'a>,
    /// True if the lane sends its frames on.
    sends: bool,
}

impl<'a> Lane<'a> {
    /// Through `xdp_uplink`.
    pub(super) fn xdp(node: &'a Node, name: &'static str, frame: Vec<u8>) -> Result<Self> {
        let mut lane = Self::to_kernel(name, frame, node.uplink, Box::new(|| Ok(node.forwarded()?.0)))?;
        let next = lane.programs.map_mut("NEXT").context("no map NEXT")?;
        let mut next = ProgramArray::try_from(next)?;
        next.set(0, node.programs.lock().xdp_program()?, 0).context("hand on to xdp_uplink")?;
        Ok(lane)
    }

    /// Through the kernel to `from_uplink`.
    pub(super) fn tc(node: &'a Node, name: &'static str, frame: Vec<u8>) -> Result<Self> {
        Self::to_kernel(name, frame, node.uplink, Box::new(|| Ok(node.forwarded()?.1)))
    }

    /// To a program that drops it: what making a frame costs.
    pub(super) fn alone(node: &Node, frame: Vec<u8>) -> Result<Self> {
        let none: Counter<'a> = Box::new(|| Ok(0));
        let mut lane = Self { sends: false, ..Self::to_kernel("a frame alone", frame, node.uplink, none)? };
        xdp(&mut lane.programs, "discard")?.load()?;
        let discard = xdp(&mut lane.programs, "discard")?.fd()?.try_clone()?;
        let next = lane.programs.map_mut("NEXT").context("no map NEXT")?;
        ProgramArray::try_from(next)?.set(0, &discard, 0)?;
        Ok(lane)
    }

    /// To the kernel, at this interface.
    pub(super) fn to_kernel(
        name: &'static str,
        frame: Vec<u8>,
        ifindex: u32,
        forwarded: Counter<'a>,
    ) -> Result<Self> {
        let words = live_frames::front(&frame);
        let mut programs = EbpfLoader::new()
            .override_global("FRAME", &words[..], true)
            .load(OBJECT)
            .context("the benchmark's programs")?;
        xdp(&mut programs, "fresh")?.load()?;
        Ok(Self { name, slices: Vec::new(), programs, frame, ifindex, forwarded, sends: true })
    }

    /// Sends frames and takes the time. All of them must have been forwarded.
    pub(super) fn run(&mut self, frames: u32, clock: ClockId) -> Result<Slice> {
        let before = (self.forwarded)()?;
        let start = clock_gettime(clock)?;
        live_frames::run(xdp(&mut self.programs, "fresh")?, &self.frame, self.ifindex, frames)?;
        let spent = Duration::from(clock_gettime(clock)?).saturating_sub(start.into());
        let nanoseconds = spent.as_secs_f64() * 1e9 / f64::from(frames);
        let done = (self.forwarded)()? - before;
        ensure!(
            !self.sends || done >= u64::from(frames),
            "{}: {done} of {frames} frames were forwarded",
            self.name
        );
        Ok(Slice { nanoseconds })
    }
}
