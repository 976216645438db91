//! Figures of the fast path's control: what made the cache invalid, how fast, and what it may do.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::flow_cache::Gate;
use crate::flow_cache::invalidation::{Source, Tracking};
use api::admin::Sight;

/// All of them. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    bumps: Family<SourceLabels, Counter>,
    pub(super) delay: Histogram,
    pub(super) revalidation: Histogram,
    gate: Family<BitLabels, Gauge>,
    sight: Family<SightLabels, Gauge>,
    pub(super) held: Counter<f64, std::sync::atomic::AtomicU64>,
    tracking: Family<TrackingLabels, Gauge>,
    pub(super) divergences: Counter,
    pub(super) failures: Counter,
    endpoints: Family<PathLabels, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BitLabels {
    bit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SightLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TrackingLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    path: &'static str,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            bumps: Family::default(),
            delay: Histogram::new(exponential_buckets(0.000_002, 2.0, 18)),
            revalidation: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            gate: Family::default(),
            sight: Family::default(),
            held: Counter::default(),
            tracking: Family::default(),
            divergences: Counter::default(),
            failures: Counter::default(),
            endpoints: Family::default(),
        }
    }
}

impl Figures {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "fastpath_bumps",
            "Times everything cached was made invalid, by what caused it",
            self.bumps.clone(),
        );
        registry.register(
            "fastpath_invalidation_seconds",
            "From the arrival of OVS's word that flows changed until the cache was invalid",
            self.delay.clone(),
        );
        registry.register(
            "fastpath_revalidation_seconds",
            "Time OVS took to bring its datapath flows in line after a burst of changes",
            self.revalidation.clone(),
        );
        registry.register("fastpath_gate", "What the cache may do, 1 or 0", self.gate.clone());
        registry.register(
            "fastpath_sight",
            "1 for the present state: changes of OVS are seen (open), not seen for a moment (hold), not seen (closed)",
            self.sight.clone(),
        );
        registry.register(
            "fastpath_hold_seconds",
            "Time in which cached flows went on although changes of OVS were not seen",
            self.held.clone(),
        );
        registry.register(
            "fastpath_tracking",
            "1 for the present state of connection tracking: tolerant, unknown or strict; TCP needs tolerant",
            self.tracking.clone(),
        );
        registry.register(
            "fastpath_divergences",
            "Times OVS answered otherwise than was remembered",
            self.divergences.clone(),
        );
        registry.register(
            "fastpath_control_failures",
            "Calls to the flow cache that failed",
            self.failures.clone(),
        );
        registry.register("fastpath_endpoints", "Endpoints by path", self.endpoints.clone());
    }

    pub(super) fn bump(&self, source: Source) {
        self.bumps.get_or_create(&SourceLabels { source: source.name() }).inc();
    }

    pub(super) fn bumps(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |source: Source| self.bumps.get_or_create(&SourceLabels { source: source.name() }).get();
        Source::ALL.into_iter().map(move |source| (source.name(), count(source)))
    }

    pub(super) fn state(&self, gate: Gate, sight: Sight, tracking: &Tracking) {
        let Gate { forward, learn, tcp, hold } = gate;
        for (bit, on) in [("forward", forward), ("learn", learn), ("tcp", tcp), ("hold", hold)] {
            self.gate.get_or_create(&BitLabels { bit }).set(on.into());
        }
        for (state, on) in [
            ("open", sight == Sight::Open),
            ("hold", sight == Sight::Hold),
            ("closed", sight == Sight::Closed),
        ] {
            self.sight.get_or_create(&SightLabels { state }).set(on.into());
        }
        for (state, on) in [
            ("tolerant", *tracking == Tracking::Tolerant),
            ("unknown", *tracking == Tracking::Unknown),
            ("strict", matches!(tracking, Tracking::Strict(_))),
        ] {
            self.tracking.get_or_create(&TrackingLabels { state }).set(on.into());
        }
    }

    pub(super) fn endpoints(&self, fast: usize, slow: usize) {
        for (path, count) in [("ebpf", fast), ("ovs", slow)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.endpoints.get_or_create(&PathLabels { path }).set(count);
        }
    }
}
