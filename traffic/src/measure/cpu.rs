//! What all CPUs of a machine did, from `/proc/stat` (proc_stat(5)). In a container that is the node's, not the container's.

use serde::{Deserialize, Serialize};

/// Seconds in a tick of `/proc/stat` (`USER_HZ`, 100 on every architecture of Linux that this runs on).
const TICK: f64 = 0.01;

/// Seconds of all CPUs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// User and nice.
    pub user: f64,
    /// In the kernel, without interrupts.
    pub system: f64,
    /// Interrupts and soft interrupts.
    pub softirq: f64,
    /// Taken by the hypervisor.
    pub steal: f64,
    /// Idle and waiting for disks.
    pub idle: f64,
}

impl CpuTimes {
    /// Since the machine was started. All zeros where `/proc/stat` cannot be read.
    pub(crate) fn now() -> Self {
        std::fs::read_to_string("/proc/stat").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let sum = |at: &[usize]| TICK * at.iter().filter_map(|at| ticks.get(*at)).sum::<f64>();
        Self {
            user: sum(&[0, 1]),
            system: sum(&[2]),
            softirq: sum(&[5, 6]),
            steal: sum(&[7]),
            idle: sum(&[3, 4]),
        }
    }

    /// From `begin` to this.
    pub(crate) fn since(self, begin: Self) -> Self {
        let less = |a: f64, b: f64| (a - b).max(0.0);
        Self {
            user: less(self.user, begin.user),
            system: less(self.system, begin.system),
            softirq: less(self.softirq, begin.softirq),
            steal: less(self.steal, begin.steal),
            idle: less(self.idle, begin.idle),
        }
    }

    /// What was worked, by anybody.
    pub(crate) fn busy(self) -> f64 {
        self.user + self.system + self.softirq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_is_read_from_its_place() {
        let text = "cpu  100 10 200 3000 40 5 60 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nctxt 5\n";
        let times = CpuTimes::parse(text);
        let all = [times.user, times.system, times.softirq, times.steal, times.idle];
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(all.iter().zip([1.1, 2.0, 0.65, 0.07, 30.4]).all(|(a, b)| near(*a, b)), "{all:?}");
        let later = CpuTimes { user: 2.1, ..times };
        assert!(near(later.since(times).busy(), 1.0));
        assert_eq!(CpuTimes::parse("nothing"), CpuTimes::default());
    }
}
