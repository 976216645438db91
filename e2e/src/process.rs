//! What a process of a host uses, as `/proc` tells it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use testbed::cluster::Bed;

/// A process of a host that runs now.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Number inside the host, the same as long as it is the same process.
    pub(crate) pid: i32,
    directory: PathBuf,
}

impl Process {
    /// The process of a host with this name.
    pub(crate) fn of(bed: &Bed, host: &str, name: &str) -> Result<Self> {
        let of = bed.host(host);
        let found = of.processes()?.into_iter().find(|process| process.name == name);
        let pid =
            found.and_then(|process| process.pid).with_context(|| format!("no {name} runs on {host}"))?;
        Ok(Self { pid, directory: of.path(format!("/proc/{pid}"))? })
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.directory.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Time of a processor that it has used so far.
    pub(crate) fn used(&self) -> Result<Duration> {
        used(&self.read("stat")?)
    }

    /// Memory that is in use, in kB.
    pub(crate) fn resident_kb(&self) -> Result<u64> {
        field(&self.read("status")?, "VmRSS:")
    }

    /// The most memory that it ever had in use, in kB.
    pub(crate) fn peak_kb(&self) -> Result<u64> {
        field(&self.read("status")?, "VmHWM:")
    }
}

/// User and system time in `/proc/PID/stat` (proc(5)).
fn used(stat: &str) -> Result<Duration> {
    // The name, in parentheses, may hold spaces.
    let (_, rest) = stat.rsplit_once(") ").context("/proc/PID/stat")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).context("/proc/PID/stat");
    // utime and stime are the 14th and 15th, the state is the 3rd; a tick is 10 ms on every machine that Linux knows.
    Ok(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}

fn field(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
    value.with_context(|| format!("no {name} in /proc/PID/status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_are_read_as_the_kernel_writes_them() {
        let stat = "7 (node agent) S 1 7 7 0 -1 4194560 900 0 0 0 130 70 0 0 20 0 9 0 1 2 3";
        assert_eq!(used(stat).unwrap(), Duration::from_secs(2));
        used("7 (x").unwrap_err();
        let status = "Name:\tx\nVmHWM:\t   1300 kB\nVmRSS:\t   1200 kB\n";
        assert_eq!((field(status, "VmRSS:").unwrap(), field(status, "VmHWM:").unwrap()), (1200, 1300));
        field("Name:\tx\n", "VmRSS:").unwrap_err();
    }
}
