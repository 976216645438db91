//! The machine that an end runs on, so that a result says where it comes from.

use std::fs;

use serde::{Deserialize, Serialize};

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Version of this program.
    pub version: String,
    /// Name of the machine.
    pub hostname: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu_model: String,
    /// Number of CPUs that this program may use.
    pub cpus: usize,
    /// The kernel's clock source.
    pub clock: String,
}

impl Host {
    /// The machine that this process runs on. What cannot be read stays empty.
    pub(crate) fn this() -> Self {
        let read =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            hostname: read("/proc/sys/kernel/hostname"),
            kernel: read("/proc/sys/kernel/osrelease"),
            cpu_model: model(&read("/proc/cpuinfo")),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }
}

/// The first model name of `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_first_one() {
        assert_eq!(model("processor\t: 0\nmodel name\t: A Good One\nmodel name\t: Other\n"), "A Good One");
        assert_eq!(model("x\n"), std::env::consts::ARCH);
        assert!(!Host::this().kernel.is_empty());
    }
}
