//! CPU time of the machine.

/// Time of all CPUs since the start of the machine, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuTime {
    busy: u64,
    all: u64,
    /// Number of CPUs.
    cpus: u32,
}

impl CpuTime {
    /// Reads it; `None` where `/proc/stat` is not as expected.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line of `/proc/stat`, `cpu user nice system idle iowait irq softirq steal …` (proc(5)), and counts the CPUs.
    fn parse(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('\n')?;
        let times: Vec<u64> =
            first.strip_prefix("cpu ")?.split_whitespace().map_while(|t| t.parse().ok()).collect();
        // Guests' time is part of user and nice.
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *times.as_slice() else {
            return None;
        };
        let busy = user + nice + system + irq + softirq;
        let cpus = u32::try_from(rest.lines().take_while(|line| line.starts_with("cpu")).count()).ok()?;
        Some(Self { busy, all: busy + idle + iowait + steal, cpus })
    }

    /// CPUs that were busy on average since `before`; `None` where the clock did not go on.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub(super) fn busy_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let busy = self.busy.checked_sub(before.busy)?;
        Some(busy as f64 / all as f64 * f64::from(self.cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_cpus_are_what_was_neither_idle_nor_stolen() {
        let stat = |user, idle, steal| {
            CpuTime::parse(&format!("cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1\ncpu1 1\nintr 5\n"))
                .unwrap()
        };
        let (before, now) = (stat(100, 100, 0), stat(250, 130, 20));
        assert_eq!(now.busy_since(before), Some(1.5));
        assert_eq!(before.busy_since(before), None);
        assert_eq!(CpuTime::parse("cpu 1 2\n"), None);
        assert!(CpuTime::now().is_some_and(|now| now.cpus > 0));
    }
}
