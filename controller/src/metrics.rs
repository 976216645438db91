//! Counters and histograms, in Prometheus' text form on `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::reconcile::Foreign;
use crate::state::NoticeKind;

/// Kinds of errors, as labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ErrorKind {
    /// The database refused a transaction.
    TransactionRefused,
    /// The connection was lost before the outcome of a transaction was known.
    TransactionUnknown,
    /// There was no connection to the database, or the lock was not ours.
    TransactionNotSent,
    /// An annotation could not be written; it is tried again.
    Annotation,
    /// An event could not be published.
    Event,
    /// A watch failed and is started again.
    Watch,
    /// A Kubernetes object or annotation cannot be read or contradicts others.
    Malformed,
    /// No subnet, number or address is left.
    Exhausted,
    /// Another object has what an object claims.
    Conflict,
    /// The lease could not be read or written.
    Lease,
    /// The status or the finalizer of a virtual network could not be written; it is tried again.
    NetworkStatus,
    /// An IPAMClaim could not be made, or its status not written; it is tried again.
    IpamClaim,
    /// The VirtualNetwork of an onapNetwork could not be made, read or deleted; it is tried again.
    OnapNetwork,
    /// The API for virtual networks answered with an error of its own or of the API server, could not accept a connection, or could
    /// not read a new certificate.
    NetworkApi,
}

impl From<NoticeKind> for ErrorKind {
    fn from(kind: NoticeKind) -> Self {
        match kind {
            NoticeKind::Malformed => Self::Malformed,
            NoticeKind::Exhausted => Self::Exhausted,
            NoticeKind::Conflict | NoticeKind::NameConflict | NoticeKind::NodeConflict => Self::Conflict,
            NoticeKind::Address => Self::Malformed,
            NoticeKind::Refused => Self::TransactionRefused,
            NoticeKind::NotWritten => Self::Annotation,
            NoticeKind::Network => Self::Malformed,
            NoticeKind::NetworkExhausted => Self::Exhausted,
            NoticeKind::NetworkConflict | NoticeKind::AddressConflict => Self::Conflict,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    kind: ErrorKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FeatureLabels {
    feature: &'static str,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForeignLabels {
    feature: String,
}

/// The metrics of the controller.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    errors: Family<ErrorLabels, Counter>,
    features: Family<FeatureLabels, Gauge>,
    foreign: Family<ForeignLabels, Gauge>,
    /// Transactions that the database carried out.
    pub transactions: Counter,
    /// Operations of the transactions that the database carried out.
    pub operations: Counter,
    /// Rows repaired after another client changed them.
    pub repairs: Counter,
    /// Rows not repaired because they were repaired too often.
    pub repairs_deferred: Counter,
    /// Operations that the last verification found missing, and units that the database refuses.
    differences: Gauge<i64, AtomicI64>,
    /// Differences found by all verifications that no change of the database explains.
    differences_found: Counter,
    /// Verifications that were completed.
    verifications: Counter,
    /// Verifications that only planned units, as the rows that the one before had compared were unchanged.
    pub verifications_unchanged: Counter,
    /// Operations of the largest transaction.
    operations_max: Gauge<i64, AtomicI64>,
    /// Bytes of the largest transaction.
    bytes_max: Gauge<i64, AtomicI64>,
    /// Annotations written.
    pub annotations: Counter,
    /// Objects whose annotation is to be written.
    pub annotations_waiting: Gauge<i64, AtomicI64>,
    /// 1 while this process is the leader.
    pub leader: Gauge<i64, AtomicI64>,
    /// Pods with an address.
    pub pods: Gauge<i64, AtomicI64>,
    /// Pods that wait for an address.
    pub pods_waiting: Gauge<i64, AtomicI64>,
    /// Time from sending a transaction to its reply.
    pub transaction_seconds: Histogram,
    /// Time from the watch event of a pod until its port is in the database.
    pub pod_seconds: Histogram,
    /// Time from the first to the last attempt to write an annotation.
    pub annotation_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        // 0.25 ms to 8 s.
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 2.0, 16));
        let mut metrics = Self {
            registry: Arc::default(),
            errors: Family::default(),
            features: Family::default(),
            foreign: Family::default(),
            transactions: Counter::<u64, AtomicU64>::default(),
            operations: Counter::default(),
            repairs: Counter::default(),
            repairs_deferred: Counter::default(),
            differences: Gauge::default(),
            differences_found: Counter::default(),
            verifications: Counter::default(),
            verifications_unchanged: Counter::default(),
            operations_max: Gauge::default(),
            bytes_max: Gauge::default(),
            annotations: Counter::default(),
            annotations_waiting: Gauge::default(),
            leader: Gauge::default(),
            pods: Gauge::default(),
            pods_waiting: Gauge::default(),
            transaction_seconds: seconds(),
            pod_seconds: seconds(),
            annotation_seconds: seconds(),
        };
        let mut r = Registry::with_prefix("slipstream_controller");
        r.register("errors", "Errors by kind", metrics.errors.clone());
        r.register("feature_off", "Features that the northbound schema lacks", metrics.features.clone());
        r.register(
            "nb_foreign_rows",
            "Rows of features that the controller does not have, at start",
            metrics.foreign.clone(),
        );
        r.register("nb_transactions", "Transactions carried out", metrics.transactions.clone());
        r.register("nb_operations", "Operations of transactions carried out", metrics.operations.clone());
        r.register("nb_repairs", "Rows repaired after a change by another client", metrics.repairs.clone());
        r.register(
            "nb_repairs_deferred",
            "Repairs deferred because the row was repaired too often",
            metrics.repairs_deferred.clone(),
        );
        r.register(
            "nb_differences",
            "Operations that the last verification needed to repair differences, and units that the database refuses",
            metrics.differences.clone(),
        );
        r.register(
            "nb_differences_found",
            "Operations needed to repair differences found by verifications",
            metrics.differences_found.clone(),
        );
        r.register("nb_verifications", "Completed verifications", metrics.verifications.clone());
        r.register(
            "nb_verifications_unchanged",
            "Verifications that skipped the comparison because nothing had changed since the last one",
            metrics.verifications_unchanged.clone(),
        );
        r.register(
            "nb_transaction_operations_max",
            "Operations of the largest transaction",
            metrics.operations_max.clone(),
        );
        r.register(
            "nb_transaction_bytes_max",
            "Approximate size of the largest transaction in bytes",
            metrics.bytes_max.clone(),
        );
        r.register("annotations", "Annotations written", metrics.annotations.clone());
        r.register(
            "annotations_waiting",
            "Objects whose annotation is to be written",
            metrics.annotations_waiting.clone(),
        );
        r.register("leader", "1 while this process is the leader", metrics.leader.clone());
        r.register("pods", "Pods with an address", metrics.pods.clone());
        r.register("pods_waiting", "Pods that wait for an address", metrics.pods_waiting.clone());
        let mut seconds = |name: &str, help: &str, histogram: &Histogram| {
            r.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        seconds("nb_transaction", "Round trip of a transaction", &metrics.transaction_seconds);
        seconds(
            "pod_to_nb",
            "Time from the watch event of a pod to its committed port",
            &metrics.pod_seconds,
        );
        seconds("annotation", "Writing an annotation", &metrics.annotation_seconds);
        metrics.registry = Arc::new(r);
        metrics
    }
}

impl Metrics {
    /// Counts an error.
    pub fn error(&self, kind: ErrorKind) {
        self.errors.get_or_create(&ErrorLabels { kind }).inc();
    }

    /// Number of errors of a kind.
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors.get_or_create(&ErrorLabels { kind }).get()
    }

    /// A verification has ended.
    pub fn verified(&self, differences: usize, refused: usize) {
        self.differences.set(i64::try_from(differences + refused).unwrap_or(i64::MAX));
        self.differences_found.inc_by(u64::try_from(differences).unwrap_or(u64::MAX));
        self.verifications.inc();
    }

    /// Operations that verifications found to be missing so far, and the number of verifications.
    pub fn found_by_verification(&self) -> (u64, u64) {
        (self.differences_found.get(), self.verifications.get())
    }

    /// A transaction is about to be sent.
    pub fn transaction_size(&self, operations: usize, bytes: usize) {
        let grow = |gauge: &Gauge<i64, AtomicI64>, value: usize| {
            gauge.set(gauge.get().max(i64::try_from(value).unwrap_or(i64::MAX)));
        };
        grow(&self.operations_max, operations);
        grow(&self.bytes_max, bytes);
    }

    /// Operations and bytes of the largest transaction so far.
    pub fn largest_transaction(&self) -> (i64, i64) {
        (self.operations_max.get(), self.bytes_max.get())
    }

    /// Notes a feature that is off.
    pub fn feature_off(&self, feature: &'static str, reason: &str) {
        self.features.get_or_create(&FeatureLabels { feature, reason: reason.to_owned() }).set(1);
    }

    /// Notes what the database holds of other features.
    pub fn foreign(&self, foreign: &Foreign) {
        for (feature, found) in &foreign.features {
            let rows = i64::try_from(found.rows).unwrap_or(i64::MAX);
            self.foreign.get_or_create(&ForeignLabels { feature: feature.clone() }).set(rows);
        }
    }

    /// Observes a duration.
    pub fn observe(histogram: &Histogram, duration: Duration) {
        histogram.observe(duration.as_secs_f64());
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_kind_and_shown() {
        let metrics = Metrics::default();
        metrics.error(ErrorKind::Malformed);
        metrics.error(ErrorKind::Malformed);
        assert_eq!(metrics.errors(ErrorKind::Malformed), 2);
        assert!(
            metrics.text().contains("slipstream_controller_errors_total{kind=\"Malformed\"} 2"),
            "{}",
            metrics.text()
        );
    }
}
