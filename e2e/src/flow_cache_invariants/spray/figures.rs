//! What a node's agent shows of itself and of the flow cache, as figures that can be compared.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::Stage;
use super::super::scene::Scene;
use crate::process::Process;

/// Figures of one node at one time, or the largest of several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Entries and room of each map.
    pub(super) maps: BTreeMap<String, (u64, u64)>,
    /// Entries and room of each map, as the metrics show them.
    pub(super) metrics: BTreeMap<String, (u64, u64)>,
    /// Entries that were ever made.
    pub(super) learned: u64,
    /// Time to a refresh.
    pub(super) refresh_ms: u64,
    /// Packets through the node's tunnels, both directions.
    pub(super) fast: u64,
    pub(super) slow: u64,
    /// Memory of the agent that is in use.
    pub(super) resident_kb: u64,
}

impl Figures {
    /// Entries and room of a map; none if it is not shown.
    pub(super) fn map(&self, name: &str) -> (u64, u64) {
        self.maps.get(name).copied().unwrap_or_default()
    }

    /// Maps with more entries than room.
    pub(super) fn too_full(&self) -> impl Iterator<Item = String> {
        let over = self.maps.iter().filter(|(_, (entries, room))| entries > room);
        over.map(|(name, (entries, room))| format!("{name}: {entries} of {room}"))
    }

    /// Keeps the larger one of each figure.
    pub(super) fn raise(&mut self, other: &Self) {
        for (mine, other) in [(&mut self.maps, &other.maps), (&mut self.metrics, &other.metrics)] {
            for (name, &(entries, room)) in other {
                let mine = mine.entry(name.clone()).or_default();
                *mine = (mine.0.max(entries), room);
            }
        }
        self.learned = self.learned.max(other.learned);
        self.refresh_ms = self.refresh_ms.max(other.refresh_ms);
        self.fast = self.fast.max(other.fast);
        self.slow = self.slow.max(other.slow);
        self.resident_kb = self.resident_kb.max(other.resident_kb);
    }
}

/// Reads all of a node. Without eBPF there is only the memory.
pub(super) fn node_figures(stage: &Stage<'_>, scene: &Scene<'_>, node: &str) -> Result<Figures> {
    let mut figures = Figures {
        resident_kb: Process::of(stage.bed, node, "node-agent")?.resident_kb()?,
        ..Figures::default()
    };
    if !stage.fast() {
        return Ok(figures);
    }
    let agent = scene.pods.agent(node);
    let status = agent.status()?;
    for map in status["maps"].as_array().context("no maps in the status")? {
        let number = |name: &str| map[name].as_u64().with_context(|| format!("no {name} in {map}"));
        let name = map["map"].as_str().with_context(|| format!("no name in {map}"))?;
        figures.maps.insert(name.to_owned(), (number("entries")?, number("capacity")?));
    }
    let metrics = agent.metrics()?;
    for name in figures.maps.keys() {
        let one = |what: &str| metrics.find(&format!("slipstream_node_map_{what}"), &[("map", name)]);
        figures.metrics.extend(one("entries")?.zip(one("capacity")?).map(|both| (name.clone(), both)));
    }
    figures.learned = status["packetReasons"]["learned"].as_u64().unwrap_or_default();
    figures.refresh_ms = status["cache"]["refreshMs"].as_u64().context("no refreshMs in the status")?;
    let tunnels: Vec<Value> = agent.slipctl_json(&["tunnels"])?;
    let sum = |path: &str| -> u64 {
        let both = |tunnel: &Value| {
            ["in", "out"].map(|way| tunnel[way][path]["packets"].as_u64().unwrap_or_default()).iter().sum()
        };
        tunnels.iter().map(|tunnel| -> u64 { both(tunnel) }).sum()
    };
    (figures.fast, figures.slow) = (sum("fast"), sum("slow"));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_figures_are_kept_and_a_map_that_is_too_full_is_named() {
        let of = |entries, resident_kb| Figures {
            maps: [("A".to_owned(), (entries, 10))].into(),
            resident_kb,
            ..Figures::default()
        };
        let mut most = of(11, 1);
        most.raise(&of(3, 2));
        assert_eq!(most, of(11, 2));
        assert_eq!(most.too_full().collect::<Vec<_>>(), ["A: 11 of 10"]);
        assert_eq!(most.map("B"), (0, 0));
        assert_eq!(of(10, 0).too_full().count(), 0);
    }
}
