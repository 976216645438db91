//! Metrics of the flow cache's manager: invalidations and their latency, mode bits, monitor health.

pub mod collector;
pub mod pressure_cache;
pub mod service_collector;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::flow_cache::cache::Gate;
use crate::flow_cache::invalidation::{Cause, Tracking};
use api::admin::MonitorHealth;

/// Metrics of the manager. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct CacheMetrics {
    invalidations: Family<CauseLabels, Counter>,
    pub(super) scopes: Counter,
    scoped: Family<CauseLabels, Counter>,
    unscoped: Family<WhyLabels, Counter>,
    pub(super) delay: Histogram,
    pub(super) revalidation: Histogram,
    pub(super) evaluation: Histogram,
    gate: Family<BitLabels, Gauge>,
    monitor: Family<MonitorLabels, Gauge>,
    pub(super) held: Counter<f64, std::sync::atomic::AtomicU64>,
    tracking: Family<TrackingLabels, Gauge>,
    pub(super) divergences: Counter,
    pub(super) failures: Counter,
    pub(super) tracking_ended: Counter,
    pub(super) tracking_lost: Counter,
    pub(super) tracking_dropped: Counter,
    endpoints: Family<PathLabels, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhyLabels {
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BitLabels {
    bit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MonitorLabels {
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

impl Default for CacheMetrics {
    fn default() -> Self {
        Self {
            invalidations: Family::default(),
            scopes: Counter::default(),
            scoped: Family::default(),
            unscoped: Family::default(),
            delay: Histogram::new(exponential_buckets(0.000_002, 2.0, 18)),
            revalidation: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            evaluation: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            gate: Family::default(),
            monitor: Family::default(),
            held: Counter::default(),
            tracking: Family::default(),
            divergences: Counter::default(),
            failures: Counter::default(),
            tracking_ended: Counter::default(),
            tracking_lost: Counter::default(),
            tracking_dropped: Counter::default(),
            endpoints: Family::default(),
        }
    }
}

impl CacheMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "fastpath_bumps",
            "Invalidations of all cached flows, by cause",
            self.invalidations.clone(),
        );
        registry.register(
            "fastpath_scoped_changes",
            "Changes that concerned only some cached flows, by cause",
            self.scoped.clone(),
        );
        registry.register(
            "fastpath_unscoped_changes",
            "Changes of the bridges' flows that concerned all cached flows, by what made them so",
            self.unscoped.clone(),
        );
        registry.register(
            "fastpath_scopes",
            "Scopes (addresses, ports, MAC addresses, tunnel keys, datapaths) whose cached flows were invalidated; each change counts several times until OVS has followed it",
            self.scopes.clone(),
        );
        registry.register(
            "fastpath_invalidation_seconds",
            "Time from the arrival of an OpenFlow flow update to the invalidation of the flows that it concerns",
            self.delay.clone(),
        );
        registry.register(
            "fastpath_revalidation_seconds",
            "Duration of a round of OVS's revalidators after flow changes",
            self.revalidation.clone(),
        );
        registry.register(
            "fastpath_evaluation_seconds",
            "Duration of an evaluation of which endpoints may take the fast path",
            self.evaluation.clone(),
        );
        registry.register(
            "fastpath_gate",
            "Mode bits of the flow cache (forward, learn, tcp, hold); 1 if set",
            self.gate.clone(),
        );
        registry.register(
            "fastpath_sight",
            "Monitoring of OVS changes; 1 for the current state: open (synced), hold (lost, grace period), closed (lost, all packets through OVS)",
            self.monitor.clone(),
        );
        registry.register(
            "fastpath_hold_seconds",
            "Time spent in the grace period, using cached flows while OVS changes were not monitored",
            self.held.clone(),
        );
        registry.register(
            "fastpath_tracking",
            "State of OVS's connection tracking; 1 for the current state: tolerant (sequence check off), unknown or strict; TCP flows are cached only when tolerant",
            self.tracking.clone(),
        );
        registry.register(
            "fastpath_divergences",
            "Refreshes in which OVS's verdict differed from the cached entry",
            self.divergences.clone(),
        );
        registry.register(
            "fastpath_control_failures",
            "Failed operations on the flow cache",
            self.failures.clone(),
        );
        registry.register(
            "fastpath_tracking_ended",
            "Cached flows that ended because the kernel's connection tracking forgot their connection",
            self.tracking_ended.clone(),
        );
        registry.register(
            "fastpath_tracking_lost",
            "Times that notifications of the kernel's connection tracking were lost; each invalidates all cached flows",
            self.tracking_lost.clone(),
        );
        registry.register(
            "fastpath_tracking_dropped",
            "Connections forgotten by the kernel's connection tracking that were not looked for in the cache, as too many came at once and they were never answered",
            self.tracking_dropped.clone(),
        );
        registry.register("fastpath_endpoints", "Number of endpoints by path", self.endpoints.clone());
    }

    pub(super) fn invalidated(&self, cause: Cause) {
        self.invalidations.get_or_create(&CauseLabels { source: cause.name() }).inc();
    }

    /// Counts a change that concerned only some cached flows.
    pub(super) fn scoped(&self, cause: Cause) {
        self.scoped.get_or_create(&CauseLabels { source: cause.name() }).inc();
    }

    /// Counts a change of the bridges' flows that concerned all cached flows.
    pub(super) fn unscoped(&self, why: &'static str) {
        self.unscoped.get_or_create(&WhyLabels { why }).inc();
    }

    pub(super) fn invalidations(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_cause(&self.invalidations)
    }

    pub(super) fn scoped_changes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_cause(&self.scoped)
    }

    pub(super) fn state(&self, gate: Gate, monitor: MonitorHealth, tracking: &Tracking) {
        let Gate { forward, learn, tcp, hold } = gate;
        for (bit, on) in [("forward", forward), ("learn", learn), ("tcp", tcp), ("hold", hold)] {
            self.gate.get_or_create(&BitLabels { bit }).set(on.into());
        }
        for (state, on) in [
            ("open", monitor == MonitorHealth::Synced),
            ("hold", monitor == MonitorHealth::GracePeriod),
            ("closed", monitor == MonitorHealth::Stale),
        ] {
            self.monitor.get_or_create(&MonitorLabels { state }).set(on.into());
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

fn by_cause(counters: &Family<CauseLabels, Counter>) -> impl Iterator<Item = (&'static str, u64)> {
    let count = |cause: Cause| counters.get_or_create(&CauseLabels { source: cause.name() }).get();
    Cause::ALL.into_iter().map(move |cause| (cause.name(), count(cause)))
}
