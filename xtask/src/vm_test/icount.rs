//! `cargo xtask vm-test --icount`: instructions of a round trip on each path, from a machine whose clock counts them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{origin::Origin, start};
use crate::setup::kernel::Kernel;
use crate::{exec, paths};

/// The output of the suite `instruction_count`; `perf-tests` reads it as well.
#[derive(Debug, Deserialize)]
pub(super) struct Figures {
    /// Release of the kernel.
    pub(super) kernel: String,
    /// The commit that was measured, where it is known.
    pub(super) commit: Option<String>,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// Instructions of a round trip or a connection, the lowest of the medians.
    pub(super) instructions: u64,
    /// Medians of all passes.
    pub(super) all: Vec<u64>,
}

/// Ratios that are printed, with their upper limits.
const RATIOS: &[(&str, &str, f64)] = &[
    ("fast", "ovs", 0.49),
    ("fast", "host", 1.15),
    ("fast", "vxlan", 0.60),
    ("fast-same", "ovs-same", 0.72),
    ("fast-same", "veth", 1.05),
    ("learn", "off", 1.05),
    ("service", "ovs-service", 0.46),
    ("service", "fast", 1.04),
    ("vlan", "ovs-vlan", 1.00),
    ("outside", "snat", 1.00),
    ("outside-bulk", "snat-bulk", 1.00),
    ("outside", "ovs-outside", 0.60),
    ("node", "host", 1.09),
    ("node", "ovs-node", 0.60),
    ("node-pod", "routed", 1.05),
    ("node-pod", "ovs-node-pod", 0.60),
    ("node-port-own", "routed", 1.11),
    ("node-port-own", "ovs-node-port-own", 0.60),
    ("node-port-other", "ovs-node-port-other", 0.60),
];

/// Measures every path on one kernel and writes the figures where `cargo xtask bench fastpath` reads them.
pub(super) fn run(kernel: Kernel, limit: u64) -> Result<()> {
    let origin = Origin::now()?;
    let (text, complaint) = measure(kernel, limit, "")?;
    let figures = Figures::parse(&text)?;
    let place = paths::target().join("bench").join(format!("icount-{}.json", kernel.line));
    fs::create_dir_all(paths::target().join("bench"))?;
    fs::write(&place, origin.told(&text)?).with_context(|| format!("cannot write {}", place.display()))?;
    for (name, against, goal) in RATIOS {
        match figures.ratio(name, against) {
            Some(ratio) => exec::say(format_args!("{name:>12} / {against:<9} {ratio:.3}, goal {goal:.2}")),
            None => exec::say(format_args!("{name:>12} / {against:<9} not measured")),
        }
    }
    exec::say(format_args!("figures are in {}", place.display()));
    complaint.map_or(Ok(()), |complaint| bail!(complaint))
}

/// Measures some paths, fewer times: what a comparison needs. Counts do not depend on what else this machine does.
pub(super) fn some(kernel: Kernel, limit: u64, wanted: &[&str]) -> Result<Figures> {
    let fewer = format!(" --repeat 3 --paths {}", wanted.join(","));
    let (text, complaint) = measure(kernel, limit, &fewer)?;
    complaint.map_or_else(|| Figures::parse(&text), |complaint| bail!(complaint))
}

/// The file that the suite left, and what there is to complain of.
fn measure(kernel: Kernel, limit: u64, more: &str) -> Result<(String, Option<String>)> {
    let e2e = paths::target().join("debug/e2e");
    let script = format!("'{}' instruction-count --out /run/vm/keep/icount.json{more}", e2e.display());
    let outcome = start(kernel, true, limit, &script)?;
    let file = outcome.kept.join("icount.json");
    let text =
        fs::read_to_string(&file).with_context(|| format!("the machine left no {}", file.display()))?;
    let complaint = (outcome.code != 0)
        .then(|| format!("not everything could be measured; logs are in {}", outcome.kept.display()));
    Ok((text, complaint))
}

impl Figures {
    /// Reads a file of figures.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("not what `cargo xtask vm-test --icount` writes")
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    fn ratio(&self, name: &str, against: &str) -> Option<f64> {
        let count = |name: &str| self.rows.iter().find(|r| r.name == name).map(|r| r.instructions as f64);
        count(name).zip(count(against)).map(|(a, b)| a / b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_needs_both_figures() {
        let text = r#"{"kernel": "6.1.0", "rows": [{"name": "fast", "instructions": 50, "all": [50]},
                      {"name": "host", "instructions": 40, "all": [40]}]}"#;
        let figures: Figures = serde_json::from_str(text).unwrap();
        assert_eq!(figures.ratio("fast", "host"), Some(1.25));
        assert_eq!(figures.ratio("fast", "ovs"), None);
    }
}
