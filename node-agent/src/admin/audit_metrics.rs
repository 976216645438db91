//! Prometheus counter of audited flows by verdict.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use api::admin::Verdict;

/// Counter of audited flows. Clones share it.
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
            // Exports 0 before the first audit.
            drop(self.flows.get_or_create(&Labels { verdict: verdict.name() }));
        }
        registry.register(
            "audited_flows",
            "Cached flows compared with the verdict of OVS, by result",
            self.flows.clone(),
        );
    }

    pub(super) fn count(&self, verdict: Verdict) {
        self.flows.get_or_create(&Labels { verdict: verdict.name() }).inc();
    }
}
