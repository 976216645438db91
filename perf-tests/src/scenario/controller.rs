//! The controller's process, found among those of this host.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Directory of the process in `/proc`. None: it does not run here.
fn process() -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let Ok(command) = std::fs::read(path.join("cmdline")) else { continue };
        if command.split(|b| *b == 0).next().unwrap_or_default().ends_with(b"slipstream-controller") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Resident set in MB (10^6 bytes).
pub(super) fn memory() -> Result<Option<f64>> {
    let Some(path) = process()? else { return Ok(None) };
    let status = std::fs::read_to_string(path.join("status"))?;
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    Ok(kib.map(|k| k * 1024.0 / 1e6))
}

/// Seconds of CPU time that it has used.
pub(super) fn cpu_seconds() -> Result<f64> {
    let path = process()?.context("no controller runs on this host")?;
    cpu_time(&std::fs::read_to_string(path.join("stat"))?)
}

/// User and system time in a line of `/proc/PID/stat`: fields 14 and 15 of proc(5), in hundredths of a second (`USER_HZ`).
fn cpu_time(stat: &str) -> Result<f64> {
    // The second field is a name in parentheses, which may have spaces.
    let (_, rest) = stat.rsplit_once(')').context("no name in /proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let [user, system] =
        [11, 12].map(|at| fields.get(at).and_then(|field| field.parse::<u32>().ok()).map(f64::from));
    Ok(user.zip(system).map(|(user, system)| user + system).context("no CPU times in /proc/PID/stat")?
        / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_behind_any_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 8 0 100 200 300";
        assert!((cpu_time(stat).unwrap() - 2.0).abs() < 1e-9);
        assert!(cpu_time("7 x").is_err() && cpu_time("7 (x) S 1").is_err());
    }
}
