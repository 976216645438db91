//! What the agent of a full node uses, and how soon it follows OVS.

use std::time::Duration;

use anyhow::Result;

use crate::process::Process;
use testbed::cluster::Bed;

/// Figures at one time; all but the memory only grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Processor time of the agent.
    pub(super) used: Duration,
    pub(super) resident_kb: u64,
    /// Entries of the flow cache of both families.
    pub(super) entries: u64,
    /// Changes of br-int that concerned only some flows, and all of them.
    pub(super) scoped: u64,
    pub(super) everything: u64,
    /// The monitor of br-int sees every change.
    pub(super) sees: bool,
    /// Divergences that were found.
    pub(super) divergences: u64,
    /// Invalidations that took so long at most, in seconds, ascending; cumulative.
    pub(super) delays: Vec<(f64, u64)>,
}

impl Figures {
    /// Of the agent of a node.
    pub(super) fn of(bed: &Bed, node: &str) -> Result<Self> {
        let agent = bed.agent(node);
        let (status, metrics) = (agent.status()?, agent.metrics()?);
        let process = Process::of(bed, node, "node-agent")?;
        let buckets = metrics.samples("slipstream_node_fastpath_invalidation_seconds_bucket")?;
        let delays = buckets.iter().filter_map(|bucket| {
            let limit = bucket.label("le")?;
            Some((if limit == "+Inf" { f64::INFINITY } else { limit.parse().ok()? }, bucket.value))
        });
        let count = |name: &str| metrics.sum(name, &[]);
        Ok(Self {
            used: process.used()?,
            resident_kb: process.resident_kb()?,
            entries: metrics.sum("slipstream_node_map_entries", &[("map", "FLOWS")])?
                + metrics.sum("slipstream_node_map_entries", &[("map", "FLOWS6")])?,
            scoped: count("slipstream_node_fastpath_scoped_changes_total")?,
            everything: count("slipstream_node_fastpath_bumps_total")?,
            sees: status["cache"]["sight"] == "open",
            divergences: count("slipstream_node_fastpath_divergences_total")?,
            delays: delays.collect(),
        })
    }

    /// The part of a processor that was used since other figures of `time` ago.
    pub(super) fn share_since(&self, before: &Self, time: Duration) -> f64 {
        self.used.saturating_sub(before.used).as_secs_f64() / time.as_secs_f64()
    }

    /// The limit of the bucket that so large a part of the invalidations since other figures does not exceed, and how many those were.
    pub(super) fn delay_since(&self, before: &Self, part: f64) -> (Duration, u64) {
        let counts = self.delays.iter().map(|&(limit, count)| {
            let earlier = before.delays.iter().find(|(other, _)| other.total_cmp(&limit).is_eq());
            (limit, count - earlier.map_or(0, |(_, count)| *count).min(count))
        });
        let counts: Vec<_> = counts.collect();
        let all = counts.last().map_or(0, |(_, count)| *count);
        #[expect(clippy::cast_precision_loss, reason = "a share of some thousands")]
        let reached = counts.iter().find(|(_, count)| *count as f64 >= all as f64 * part);
        let limit = reached.map_or(0.0, |(limit, _)| *limit);
        (Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX), all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_the_limit_of_its_bucket() {
        let of = |counts: [u64; 3]| Figures {
            delays: [0.001, 0.002, f64::INFINITY].into_iter().zip(counts).collect(),
            ..Figures::default()
        };
        let (before, after) = (of([10, 10, 10]), of([100, 109, 110]));
        assert_eq!(after.delay_since(&before, 0.5), (Duration::from_millis(1), 100));
        assert_eq!(after.delay_since(&before, 0.99), (Duration::from_millis(2), 100));
        assert_eq!(after.delay_since(&before, 1.0), (Duration::MAX, 100));
    }
}
