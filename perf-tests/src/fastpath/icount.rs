//! Instruction counts, taken in emulated machines by `cargo xtask vm-test` and left in `target/bench/icount-KERNEL.json`.
//!
//! Names in such a file, each the instructions of one TCP round trip of 64 bytes: `fast`, `ovs`, `host`, `vxlan`, `learn` (every packet
//! slow and learned) and `off` (programs off) across nodes; `fast-same`, `ovs-same`, `veth` on one node. `fast-crr` and
//! `ovs-crr` are those of a new connection across nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::row::Figure;

/// Kernel whose figures the goals are about.
const KERNEL: &str = "6.1";

/// Ends of names: the load is UDP, or new connections.
const UDP: &str = "-udp";
const CONNECTIONS: &str = "-crr";

/// The path in a name.
fn base(name: &str) -> &str {
    name.strip_suffix(UDP).or_else(|| name.strip_suffix(CONNECTIONS)).unwrap_or(name)
}

/// What a file holds. Commit and date are those of the run; files of other tools may lack them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct File {
    kernel: String,
    #[serde(default)]
    commit: String,
    #[serde(default)]
    date: String,
    rows: Vec<Count>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Count {
    name: String,
    instructions: f64,
}

/// What was counted on one kernel.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Machine {
    commit: String,
    date: String,
    counts: BTreeMap<String, f64>,
}

impl Machine {
    /// Commit and date, as far as they are known, to go on a line.
    fn origin(&self) -> String {
        [&self.commit, &self.date]
            .into_iter()
            .filter(|text| !text.is_empty())
            .map(|text| format!(", {text}"))
            .collect()
    }
}

/// The counts of all kernels, by kernel.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Machines(BTreeMap<String, Machine>);

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
            let File { kernel, commit, date, rows } =
                serde_json::from_str(&text).with_context(|| entry.path().display().to_string())?;
            let mut counts = BTreeMap::new();
            // Of several of one name the lowest: OVS has modes.
            for Count { name, instructions } in rows {
                let least = counts.entry(name).or_insert(instructions);
                *least = least.min(instructions);
            }
            machines.0.insert(kernel, Machine { commit, date, counts });
        }
        Ok(machines)
    }

    /// The machine that the goals are about, and its kernel.
    fn machine(&self) -> Option<(&String, &Machine)> {
        // 6.1 is not 6.12.
        let prefix = format!("{KERNEL}.");
        self.0.iter().find(|(kernel, _)| *kernel == KERNEL || kernel.starts_with(&prefix))
    }

    fn count(&self, name: &str) -> Option<f64> {
        self.machine()?.1.counts.get(name).copied()
    }

    /// Where the figures are from.
    fn note(&self) -> String {
        match self.machine() {
            Some((kernel, machine)) => format!("QEMU, Linux {kernel}, kernel datapath{}", machine.origin()),
            None => format!("QEMU, Linux {KERNEL}, kernel datapath"),
        }
    }

    /// The counts themselves, as a part of the page; empty when there are none.
    pub(super) fn markdown(&self) -> String {
        let mut page = String::new();
        for (kernel, machine) in &self.0 {
            let (counts, origin) = (&machine.counts, machine.origin());
            page += &format!(
                "\n## Instructions on Linux {kernel}\n\n\
                 Counted by `cargo xtask vm-test --icount`{origin}: thousands of instructions of a round trip, the lowest \
                 of the medians.\n\n\
                 | path | TCP_RR | UDP_RR | new connection |\n|---|---|---|---|\n"
            );
            let paths: BTreeSet<&str> = counts.keys().map(|name| base(name)).collect();
            for path in paths {
                let cell = |load: &str| {
                    let count = counts.get(&format!("{path}{load}"));
                    count.map_or(String::new(), |count| format!("{:.1}", count / 1e3))
                };
                page += &format!("| {path} | {} | {} | {} |\n", cell(""), cell(UDP), cell(CONNECTIONS));
            }
        }
        page
    }

    /// One count, of another.
    fn figure(&self, what: &str, [count, of]: [&str; 2], against: &str) -> Figure {
        let value = self.count(count).zip(self.count(of)).map(|(count, of)| count / of);
        Figure::new(what, against, "").value(value).note(self.note())
    }

    /// The figures that goals are about.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let (across, same) = ("instructions, TCP_RR across nodes", "instructions, TCP_RR same node");
        let figure = |what, count, against| self.figure(what, [count, against], against);
        vec![
            figure(across, "fast", "ovs"),
            figure(across, "fast", "host"),
            figure(across, "fast", "vxlan"),
            figure(same, "fast-same", "ovs-same"),
            figure(same, "fast-same", "veth"),
            figure("instructions, every packet slow and learned", "learn", "off"),
            // As many connections a second are as few instructions each.
            self.figure("new connections across nodes", ["ovs-crr", "fast-crr"], "ovs"),
        ]
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
            r#"{"kernel":"6.1.0-56","commit":"abc","date":"2026-11-21","rows":[{"name":"fast","instructions":4900},{"name":"ovs","instructions":12000},
               {"name":"ovs","instructions":10000},{"name":"fast-crr","instructions":9900}]}"#,
        );
        write("other.json", "{}");
        let machines = Machines::read(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let figures = machines.figures();
        assert_eq!(figures[0].value, Some(0.49));
        assert_eq!(machines.note(), "QEMU, Linux 6.1.0-56, kernel datapath, abc, 2026-11-21");
        assert_eq!(figures[1].value, None);
        let page = machines.markdown();
        assert!(page.contains("Linux 6.1.0-56") && page.contains("--icount`, abc, 2026-11-21:"), "{page}");
        assert!(page.contains("\n| fast | 4.9 |  | 9.9 |\n"), "{page}");
        assert_eq!(Machines::default().markdown(), "");
    }
}
