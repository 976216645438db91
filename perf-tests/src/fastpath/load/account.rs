//! Whose the CPU was during a slice, in nanoseconds. `/proc/stat` counts in steps of 10 ms, which is too coarse for slices of 30.
//!
//! The time of a slice is that of both ends, of processes that are a part of the path (OVS, and ksoftirqd, which handles packets
//! when interrupts have too many), idle time, and what is left: other processes, kernel threads, and steal. CPU clocks of processes are exact
//! (`clock_getcpuclockid(3)`) and leave out steal; so is the idle time in `/proc/timer_list` to one who runs on that CPU and so ends
//! its sleep. Interrupts for others count as work of whoever was interrupted, as the kernel has it.

use std::fs;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Nanoseconds in a tick of `/proc/stat` (`USER_HZ`).
const TICK: u64 = 10_000_000;

/// Watches one CPU for the end that runs on it.
pub(super) struct Account {
    cpu: usize,
    /// Clocks of this process and of what is a part of the path.
    clocks: Vec<ClockId>,
}

/// The clocks at one moment.
pub(super) struct Reading {
    /// Readings of all clocks, the other end's last; those of processes that have ended have stopped.
    clocks: Vec<ClockId>,
    time: u64,
    ours: Vec<Option<u64>>,
    idle: u64,
    stolen: u64,
}

impl Account {
    /// An account of the CPU that this process stays on. The work of the processes `part_of_path` does not count as that of others.
    pub(super) fn new(cpu: usize, part_of_path: &[i32]) -> Self {
        let mut clocks = vec![ClockId::CLOCK_PROCESS_CPUTIME_ID];
        // A process that has ended has no clock; the one that replaces it counts as another.
        let others = part_of_path.iter().map(|pid| Pid::from_raw(*pid));
        clocks.extend(others.filter_map(|pid| clock_getcpuclockid(pid).ok()));
        Self { cpu, clocks }
    }

    /// The clocks before a slice. The slow ones first: what they take is not a part of it.
    pub(super) fn begin(&self, peer: Pid) -> Result<Reading> {
        let mut clocks = self.clocks.clone();
        clocks.push(clock_getcpuclockid(peer).with_context(|| format!("CPU clock of process {peer}"))?);
        let (idle, stolen) = self.files()?;
        let ours = clocks.iter().map(|clock| read(*clock).ok()).collect();
        Ok(Reading { clocks, time: monotonic()?, ours, idle, stolen })
    }

    /// The part of the time since `begin` in which other processes had the CPU.
    pub(super) fn away(&self, begin: &Reading) -> Result<f64> {
        let time = monotonic()?;
        let clocks = begin.clocks.clone();
        let ours = clocks.iter().map(|clock| read(*clock).ok()).collect();
        let (idle, stolen) = self.files()?;
        Ok(away(begin, &Reading { clocks, time, ours, idle, stolen }))
    }

    fn files(&self) -> Result<(u64, u64)> {
        let text = fs::read_to_string("/proc/timer_list").context("/proc/timer_list")?;
        let idle = idle(&text, self.cpu).context("/proc/timer_list tells no idle time")?;
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        Ok((idle, TICK * steal(&text, self.cpu).context("/proc/stat tells no steal")?))
    }
}

/// What is left of the time between two readings, as a part of it.
fn away(begin: &Reading, end: &Reading) -> f64 {
    let time = end.time.saturating_sub(begin.time);
    let ours = begin.ours.iter().zip(&end.ours).filter_map(|(begin, end)| begin.zip(*end));
    let ours: u64 = ours.map(|(begin, end)| end.saturating_sub(begin)).sum();
    let known = ours + end.idle.saturating_sub(begin.idle);
    // Where the kernel's clocks of processes do not leave out steal, its ticks show it.
    let away = time.saturating_sub(known).max(end.stolen.saturating_sub(begin.stolen));
    // Nanoseconds of a moment, far below 2^52.
    if time == 0 { 0.0 } else { away as f64 / time as f64 }
}

/// `CLOCK_MONOTONIC` in nanoseconds: one clock for all processes of the machine.
pub(super) fn monotonic() -> Result<u64> {
    read(ClockId::CLOCK_MONOTONIC)
}

fn read(clock: ClockId) -> Result<u64> {
    let time = clock_gettime(clock).with_context(|| format!("clock {clock}"))?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}

/// Nanoseconds that a CPU slept, in the text of `/proc/timer_list`.
fn idle(text: &str, cpu: usize) -> Option<u64> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != format!("cpu: {cpu}")).skip(1);
    let mine = lines.by_ref().take_while(|line| !line.starts_with("cpu:"));
    let values: Vec<u64> = mine
        .filter(|line| line.starts_with(".idle_sleeptime") || line.starts_with(".iowait_sleeptime"))
        .filter_map(|line| line.split(':').nth(1)?.split_whitespace().next()?.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Ticks that the hypervisor took from a CPU, in the text of `/proc/stat` (proc_stat(5): the eighth number).
fn steal(text: &str, cpu: usize) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cpu{cpu} ")))?;
    line.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMERS: &str = "Timer List Version: v0.10\nnow at 5 nsecs\n\ncpu: 0\n clock 0:\n  .idle_sleeptime : 900 nsecs\n  \
                          .iowait_sleeptime: 20 nsecs\njiffies: 5\n\ncpu: 1\n  .idle_entrytime : 4 nsecs\n  \
                          .idle_sleeptime : 70 nsecs\n  .iowait_sleeptime: 5 nsecs\n\ncpu: 10\n  .idle_sleeptime : 1 nsecs\n";

    #[test]
    fn idle_time_is_that_of_the_cpu() {
        assert_eq!([0, 1, 10].map(|cpu| idle(TIMERS, cpu)), [Some(920), Some(75), Some(1)]);
        assert_eq!(idle(TIMERS, 2), None);
    }

    #[test]
    fn steal_is_that_of_the_cpu() {
        let text = "cpu  9 9 9 9 9 9 9 99 0 0\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu10 0 0 0 0 0 0 0 3 0 0\n";
        assert_eq!([1, 10, 2].map(|cpu| steal(text, cpu)), [Some(8), Some(3), None]);
    }

    #[test]
    fn what_is_neither_ours_nor_idle_is_somebody_elses() {
        let at = |time, ours: &[Option<u64>], idle, stolen| {
            let clocks = vec![ClockId::CLOCK_MONOTONIC; ours.len()];
            Reading { clocks, time, ours: ours.to_vec(), idle, stolen }
        };
        let part = |end: Reading| away(&at(1_000, &[Some(10), Some(70)], 5, 0), &end);
        assert!((part(at(2_000, &[Some(310), Some(470)], 105, 0)) - 0.2).abs() < 1e-9);
        assert!((part(at(2_000, &[Some(310), Some(770)], 5, 0)) - 0.0).abs() < 1e-9);
        // A process of the path that ran on another CPU.
        assert!((part(at(2_000, &[Some(910), Some(1_070)], 5, 0)) - 0.0).abs() < 1e-9);
        assert!((part(at(2_000, &[Some(310), Some(770)], 5, 500)) - 0.5).abs() < 1e-9);
        // One that has ended meanwhile.
        assert!((part(at(2_000, &[Some(310), None], 5, 0)) - 0.7).abs() < 1e-9);
    }

    #[test]
    fn processes_that_have_ended_do_not_end_the_account() {
        let mut ended = testbed::exec::command("true").spawn().unwrap();
        ended.wait().unwrap();
        let pid = i32::try_from(ended.id()).unwrap();
        assert_eq!(Account::new(0, &[pid, 1]).clocks.len(), 2);
    }
}
