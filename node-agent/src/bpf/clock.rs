//! Clock of the eBPF programs: kernel timer ticks (jiffies), which user space cannot read.
//!
//! The resolution of the coarse clocks is the length of a tick, as the same timer advances them. So a coarse clock and one run of
//! program `clock` yield the time in ticks, with an error of one tick.

use api::error::chain;
use std::time::Duration;

use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_getres, clock_gettime},
};

use super::{Error, Programs, dry_run::Given, object::Program};

/// Coarse clock that advances with the timer, and stops while the machine is suspended.
const COARSE: ClockId = ClockId::CLOCK_MONOTONIC_COARSE;
/// Number of attempts to read the clock and run the program within one tick.
const ATTEMPTS: u32 = 100;

fn failed(text: String) -> Error {
    Error::DryRun { program: Program::Clock.name().to_owned(), text }
}

fn nanoseconds(time: TimeSpec) -> u64 {
    u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

/// Length of a timer tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    nanoseconds: u64,
}

impl Tick {
    /// Length of a tick of the running kernel.
    ///
    /// # Errors
    /// The clock cannot be read.
    pub(super) fn of_kernel() -> Result<Self, Error> {
        let resolution = clock_getres(COARSE).map_err(|errno| failed(chain(&errno)))?;
        Self::new(nanoseconds(resolution))
    }

    pub(super) fn new(nanoseconds: u64) -> Result<Self, Error> {
        match nanoseconds {
            0 => Err(failed("the kernel reports a timer tick of length 0".to_owned())),
            nanoseconds => Ok(Self { nanoseconds }),
        }
    }

    /// Converts a duration to ticks, rounded up.
    pub(super) fn count(self, time: Duration) -> u32 {
        let ticks = time.as_nanos().div_ceil(u128::from(self.nanoseconds));
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// Converts ticks to milliseconds, rounded down.
    pub(super) fn milliseconds(self, ticks: i64) -> i64 {
        let length = i64::try_from(self.nanoseconds).unwrap_or(i64::MAX);
        ticks.saturating_mul(length) / 1_000_000
    }
}

/// Clock that yields the time in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) tick: Tick,
    /// Offset to the coarse clock, in ticks.
    ahead: u32,
}

impl Clock {
    /// Synchronizes with the loaded programs.
    ///
    /// # Errors
    /// The program cannot be run, or never completed within a tick.
    pub(super) fn set(datapath: &mut Programs) -> Result<Self, Error> {
        let unset = Self { tick: datapath.tick, ahead: 0 };
        for _ in 0..ATTEMPTS {
            let before = unset.now()?;
            let ticks = datapath.ticks()?;
            if unset.now()? == before {
                return Ok(Self { ahead: ticks.wrapping_sub(before), ..unset });
            }
        }
        Err(failed("the program never completed within a tick".to_owned()))
    }

    /// Current time in ticks; wraps, as in the programs.
    ///
    /// # Errors
    /// The clock cannot be read.
    pub(super) fn now(self) -> Result<u32, Error> {
        let time = clock_gettime(COARSE).map_err(|errno| failed(chain(&errno)))?;
        let ticks = (nanoseconds(time) / self.tick.nanoseconds) & u64::from(u32::MAX);
        Ok(u32::try_from(ticks).unwrap_or(0).wrapping_add(self.ahead))
    }
}

impl Programs {
    /// Runs program `clock`: current time in ticks.
    fn ticks(&mut self) -> Result<u32, Error> {
        let packet = [0; 64];
        self.run(Program::Clock, Given { packet: &packet, ifindex: 0, tag: 0, gso_size: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_ticks_of_any_length() {
        for (nanoseconds, ticks) in [(1_000_000, 250), (3_333_333, 76), (4_000_000, 63), (10_000_000, 25)] {
            let tick = Tick::new(nanoseconds).unwrap();
            assert_eq!(tick.count(Duration::from_millis(250)), ticks, "{nanoseconds} ns");
            assert_eq!(tick.count(Duration::ZERO), 0);
            assert!((250..=260).contains(&tick.milliseconds(i64::from(ticks) + 1)), "{nanoseconds} ns");
        }
    }

    #[test]
    fn a_tick_without_length_is_refused() {
        assert!(Tick::new(0).is_err());
    }
}
