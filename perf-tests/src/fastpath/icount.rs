//! Instruction counts, taken in emulated machines by `cargo xtask vm-test` and left in `target/bench/icount-KERNEL.json`.
//!
//! Names in such a file, each the instructions of one TCP round trip of 64 bytes: `fast`, `ovs`, `host`, `vxlan`, `learn` (every packet
//! slow and learned) and `off` (programs off) across nodes; `fast-same`, `ovs-same`, `veth` on one node. `fast-crr` and
//! `ovs-crr` are those of a new connection across nodes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::rows::{Goal, Row};

/// Kernel whose figures the goals are about.
const KERNEL: &str = "6.1";

/// What a file holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct File {
    kernel: String,
    rows: Vec<Count>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Count {
    name: String,
    instructions: f64,
}

/// The counts of all kernels, by kernel and name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Machines(BTreeMap<String, BTreeMap<String, f64>>);

impl Machines {
    /// Reads what is there.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let mut machines = Self::default();
        let Ok(entries) = fs::read_dir(directory) else { return Ok(machines) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !(name.starts_with("icount-") && name.ends_with(".json")) {
                continue;
            }
            let text = fs::read_to_string(entry.path())?;
            let File { kernel, rows } =
                serde_json::from_str(&text).with_context(|| entry.path().display().to_string())?;
            let counts = machines.0.entry(kernel).or_default();
            // Of several of one name the lowest: OVS has modes.
            for Count { name, instructions } in rows {
                let least = counts.entry(name).or_insert(instructions);
                *least = least.min(instructions);
            }
        }
        Ok(machines)
    }

    fn count(&self, name: &str) -> Option<f64> {
        let of = |prefix: &str| self.0.iter().find(|(kernel, _)| kernel.starts_with(prefix));
        // 6.1 is not 6.12.
        of(&format!("{KERNEL}."))
            .or_else(|| self.0.get_key_value(KERNEL))
            .and_then(|(_, counts)| counts.get(name))
            .copied()
    }

    fn row(&self, what: &str, names: [&str; 2], goal: f64) -> Row {
        let figure = self.count(names[0]).zip(self.count(names[1])).map(|(a, b)| a / b);
        Row::instructions(what, names[1], goal, figure, KERNEL)
    }

    /// The rows about established flows.
    pub(super) fn rows(&self) -> Vec<Row> {
        let (across, same) = ("instructions, TCP_RR across nodes", "instructions, TCP_RR same node");
        vec![
            self.row(across, ["fast", "ovs"], 0.49),
            self.row(across, ["fast", "host"], 1.15),
            self.row(across, ["fast", "vxlan"], 0.60),
            self.row(same, ["fast-same", "ovs-same"], 0.72),
            self.row(same, ["fast-same", "veth"], 1.05),
            self.row("instructions, every packet slow and learned", ["learn", "off"], 1.05),
        ]
    }

    /// The row about new connections: as many a second are as few instructions each.
    pub(super) fn connections(&self) -> Vec<Row> {
        let figure = self.count("ovs-crr").zip(self.count("fast-crr")).map(|(a, b)| a / b);
        vec![Row::connections("new connections across nodes", "ovs", 1.0, figure, KERNEL)]
    }
}

impl Row {
    fn instructions(what: &str, against: &str, goal: f64, figure: Option<f64>, kernel: &str) -> Self {
        Self {
            what: what.to_owned(),
            against: against.to_owned(),
            goal: Goal::AtMost(goal),
            unit: String::new(),
            figure,
            spread: None,
            note: format!("QEMU, Linux {kernel}, kernel datapath"),
        }
    }

    fn connections(what: &str, against: &str, goal: f64, figure: Option<f64>, kernel: &str) -> Self {
        Self { goal: Goal::AtLeast(goal), ..Self::instructions(what, against, goal, figure, kernel) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_several_counts_of_the_goals_kernel_is_taken() {
        let dir = std::env::temp_dir().join(format!("icount-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let write = |file: &str, text: &str| fs::write(dir.join(file), text).unwrap();
        write("icount-6.12.107.json", r#"{"kernel":"6.12.107","rows":[{"name":"fast","instructions":1}]}"#);
        write(
            "icount-6.1.0-56.json",
            r#"{"kernel":"6.1.0-56","rows":[{"name":"fast","instructions":49},{"name":"ovs","instructions":120},
               {"name":"ovs","instructions":100}]}"#,
        );
        write("other.json", "{}");
        let machines = Machines::read(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let rows = machines.rows();
        assert_eq!(rows[0].figure, Some(0.49));
        assert_eq!(rows[1].figure, None);
    }
}
