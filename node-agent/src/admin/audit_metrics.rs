//! How many flows were audited, and with what result.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use api::admin::Verdict;

/// The counters. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct AuditMetrics {
    flows: Family<Labels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verdict: &'static str,
}

impl AuditMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        for verdict in [Verdict::Same, Verdict::Different, Verdict::Undecided] {
            // So that it is there, as 0, before the first audit.
            drop(self.flows.get_or_create(&Labels { verdict: verdict.name() }));
        }
        registry.register(
            "audited_flows",
            "Cached flows that OVS was asked about, by whether both answers agree",
            self.flows.clone(),
        );
    }

    pub(super) fn count(&self, verdict: Verdict) {
        self.flows.get_or_create(&Labels { verdict: verdict.name() }).inc();
    }
}
