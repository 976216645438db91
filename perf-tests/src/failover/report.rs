//! The table of failures, and the document.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use testbed::cluster::config::Datapath;

use super::Sample;
use super::flows::Way;
use super::loss::Loss;
use crate::names::Part;
use crate::record::Machine;
use crate::scenario_file::ScenarioFile;

/// Everything that was measured, and how.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    pub(super) machine: &'a Machine,
    pub(super) datapath: Datapath,
    pub(super) dead_ms: u64,
    pub(super) after_ms: u64,
    pub(super) samples: &'a [Sample],
}

/// The flows of one way while one thing was killed, all times.
#[derive(Debug, Default)]
struct Row {
    udp: Vec<Loss>,
    tcp: Vec<Loss>,
    /// How many of the UDP flows, and with them all others, were cached.
    cached: usize,
}

impl Row {
    /// Whether the flows kept running as the goal has it: none without one.
    fn met(&self, goal: Option<Duration>) -> Option<bool> {
        let goal = goal?;
        let within = |list: &[Loss]| stall(list).is_some_and(|(median, _)| median < millis(goal));
        Some(within(&self.udp) && within(&self.tcp) && self.cut() == 0)
    }

    fn cut(&self) -> usize {
        self.tcp.iter().map(|loss| loss.cut).sum()
    }
}

/// Prints the table; the names of the rows that miss their goal.
pub(super) fn print(
    out: &mut impl Write,
    samples: &[Sample],
    scenario: &ScenarioFile,
) -> std::io::Result<Vec<String>> {
    let mut rows: BTreeMap<(Part, Way), Row> = BTreeMap::new();
    for sample in samples {
        let row = rows.entry((sample.killed, sample.way)).or_default();
        row.cached += usize::from(sample.udp && sample.cached);
        if sample.udp { row.udp.push(sample.loss) } else { row.tcp.push(sample.loss) }
    }
    writeln!(
        out,
        "{:<24} {:<11} {:>5} {:>6}  {:<22} {:<17} {:<17} cut  goal",
        "killed", "flow", "times", "cached", "UDP lost of", "UDP stall, ms", "TCP stall, ms"
    )?;
    let mut missed = Vec::new();
    for ((killed, way), row) in &rows {
        let sent: usize = row.udp.iter().map(|loss| loss.sent).sum();
        let lost: usize = row.udp.iter().map(|loss| loss.lost).sum();
        let times = |list: &[Loss]| {
            stall(list).map_or_else(|| "-".into(), |(median, most)| format!("{median:.0} (max {most:.0})"))
        };
        let stall = scenario.stalls.iter().find(|stall| stall.killed.contains(killed));
        let goal = stall.map(|stall| Duration::from_millis(stall.below_ms));
        let goal = match (row.met(goal), goal) {
            (Some(met), Some(goal)) => {
                if !met {
                    missed.push(format!("{killed}, {way}"));
                }
                format!("stall < {} ms, none cut: {}", goal.as_millis(), if met { "met" } else { "MISSED" })
            }
            _ => String::new(),
        };
        let line = format!(
            "{:<24} {:<11} {:>5} {:>6}  {:<22} {:<17} {:<17} {:>3}  {goal}",
            killed.to_string(),
            way.to_string(),
            row.udp.len(),
            row.cached,
            format!("{lost} of {sent}"),
            times(&row.udp),
            times(&row.tcp),
            row.cut(),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(missed)
}

/// The median and the greatest of the longest silences, in milliseconds.
fn stall(list: &[Loss]) -> Option<(f64, f64)> {
    let mut all: Vec<f64> = list.iter().map(|loss| loss.stall_ms).collect();
    all.sort_by(f64::total_cmp);
    Some((*all.get(all.len() / 2)?, *all.last()?))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario_file::Run;

    fn sample(killed: Part, udp: bool, stall_ms: f64, cut: usize) -> Sample {
        Sample {
            killed,
            way: Way::OtherNode,
            udp,
            cached: udp,
            loss: Loss { sent: 100, lost: 2, stall_ms, cut },
        }
    }

    #[test]
    fn a_long_stall_or_a_cut_connection_misses_the_goal() {
        let told = |samples: &[Sample]| {
            let mut out = Vec::new();
            let scenario = ScenarioFile::of("failover", Run::Failover).unwrap();
            let missed = print(&mut out, samples, &scenario).unwrap();
            (missed, String::from_utf8(out).unwrap())
        };
        let good = [sample(Part::Agent, true, 5.0, 0), sample(Part::Agent, false, 7.0, 0)];
        let (missed, text) = told(&good);
        assert!(missed.is_empty() && text.contains("2 of 100") && text.contains("met"), "{text}");
        let slow = [sample(Part::Agent, true, 105.0, 0), sample(Part::Agent, false, 7.0, 0)];
        assert_eq!(told(&slow).0, ["node agents, other node"]);
        let cut = [sample(Part::Northd, true, 5.0, 0), sample(Part::Northd, false, 7.0, 1)];
        assert_eq!(told(&cut).0, ["ovn-northd, other node"]);
        assert_eq!(told(&good[..1]).0, ["node agents, other node"], "TCP was not measured");
        let without = [sample(Part::Vswitchd, true, 3000.0, 0), sample(Part::Vswitchd, false, 4000.0, 1)];
        assert!(told(&without).0.is_empty());
    }
}
