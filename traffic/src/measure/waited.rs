//! How long this process could have run and did not: others had the CPU.
//!
//! The scheduler's own times of each thread (`/proc/PID/task/TID/schedstat`: run, waited, both in nanoseconds) and the steal of
//! all CPUs.

use std::fs;
use std::time::Duration;

use super::CpuTimes;

/// Time waited for a CPU, and time stolen by the hypervisor, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Waited {
    /// Time that all threads waited for a CPU, in nanoseconds.
    pub(crate) nanoseconds: u64,
    /// Time stolen from all CPUs, in nanoseconds; in steps of 10 ms.
    pub(crate) stolen: u64,
}

impl Waited {
    /// Until now. 0 where the kernel keeps no such times.
    pub(crate) fn now() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        let steal = Duration::try_from_secs_f64(CpuTimes::now().steal).unwrap_or_default();
        Self {
            nanoseconds: texts.filter_map(|text| waited(&text)).sum(),
            stolen: u64::try_from(steal.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// What was waited and stolen since `begin`, in nanoseconds. A thread that has ended takes its time along.
    pub(crate) fn since(self, begin: Self) -> u64 {
        self.nanoseconds.saturating_sub(begin.nanoseconds) + self.stolen.saturating_sub(begin.stolen)
    }
}

/// The second number of a `schedstat`.
fn waited(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_is_the_second_number() {
        assert_eq!(waited("123 45 6\n"), Some(45));
        assert_eq!(waited(""), None);
        let at = |nanoseconds, stolen| Waited { nanoseconds, stolen };
        assert_eq!(at(50, 20).since(at(10, 20)), 40);
        assert_eq!(at(5, 30).since(at(10, 20)), 10);
    }
}
