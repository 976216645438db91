//! Prometheus metrics of the agent, and the registry to which other modules add theirs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Metrics of the agent. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    cni_calls: Family<CallLabels, Counter>,
    cni_seconds: Family<CommandLabels, Histogram, fn() -> Histogram>,
    cni_steps: Family<StepLabels, Histogram, fn() -> Histogram>,
    cni_files_restored: Family<FileLabels, Counter>,
    cni_configurations_before: Gauge,
    api_failures: Family<CallOfApi, Counter>,
    chassis_restored: Family<KeyLabels, Counter>,
    network_differs: Family<FlagLabels, Gauge>,
    gateway_restored: Family<WhatLabels, Counter>,
    gateway_given_back: Counter,
    stale_udp_failed: Counter,
    stale_udp_ended: Counter,
    datapath_unconfirmed: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhatLabels {
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOfApi {
    call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeyLabels {
    key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlagLabels {
    flag: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    command: &'static str,
    code: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    command: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    command: &'static str,
    step: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabels {
    file: &'static str,
}

fn from_100_microseconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 21))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("slipstream_node");
        let cni_calls = Family::default();
        let cni_seconds = Family::new_with_constructor(from_100_microseconds as fn() -> Histogram);
        let cni_steps = Family::new_with_constructor(from_100_microseconds as fn() -> Histogram);
        registry.register(
            "cni_calls",
            "CNI calls by command and error code; 0 for success",
            cni_calls.clone(),
        );
        registry.register(
            "cni_seconds",
            "Duration of CNI calls from the start of the plugin process",
            cni_seconds.clone(),
        );
        registry.register(
            "cni_step_seconds",
            "Duration of the steps of CNI calls; some run concurrently",
            cni_steps.clone(),
        );
        let cni_files_restored = Family::default();
        registry.register(
            "cni_files_restored",
            "CNI configuration or plugin files restored after another process changed or removed them",
            cni_files_restored.clone(),
        );
        let cni_configurations_before = Gauge::default();
        registry.register(
            "cni_configurations_before_ours",
            "CNI configuration files that the container runtime prefers to that of Slipstream",
            cni_configurations_before.clone(),
        );
        let api_failures = Family::default();
        registry.register(
            "api_failures",
            "Kubernetes API requests that failed or timed out, and watches that broke, by call",
            api_failures.clone(),
        );
        let chassis_restored = Family::default();
        registry.register(
            "chassis_settings_restored",
            "Settings of ovn-controller in Open_vSwitch restored after another process changed them, by key",
            chassis_restored.clone(),
        );
        let network_differs = Family::default();
        registry.register(
            "cluster_network_differs",
            "1 for each cluster network flag whose value differs from that of the controller",
            network_differs.clone(),
        );
        let gateway_restored = Family::default();
        registry.register(
            "gateway_restored",
            "Gateway objects restored after another process removed them or OVS recreated the bridge, by object",
            gateway_restored.clone(),
        );
        let gateway_given_back = Counter::default();
        registry.register(
            "gateway_given_back",
            "Uplink migrations undone because the API server did not respond through the gateway bridge",
            gateway_given_back.clone(),
        );
        let stale_udp_failed = Counter::default();
        registry.register(
            "stale_udp_failures",
            "Failed attempts to delete stale UDP conntrack entries of services",
            stale_udp_failed.clone(),
        );
        let datapath_unconfirmed = Counter::default();
        registry.register(
            "gateway_datapath_unconfirmed",
            "Times that node translations of new services took effect before the OVS datapath confirmed their flows",
            datapath_unconfirmed.clone(),
        );
        let stale_udp_ended = Counter::default();
        registry.register(
            "stale_udp_ended",
            "Stale UDP conntrack entries of services deleted",
            stale_udp_ended.clone(),
        );
        Self {
            registry: Arc::new(Mutex::new(registry)),
            cni_calls,
            cni_seconds,
            cni_steps,
            cni_files_restored,
            cni_configurations_before,
            api_failures,
            chassis_restored,
            network_differs,
            gateway_restored,
            gateway_given_back,
            stale_udp_failed,
            stale_udp_ended,
            datapath_unconfirmed,
        }
    }
}

impl Metrics {
    /// Records a CNI call: error code, total duration and duration of each step.
    pub fn cni_call(
        &self,
        command: &'static str,
        code: u32,
        total: Duration,
        steps: impl IntoIterator<Item = (&'static str, Duration)>,
    ) {
        self.cni_calls.get_or_create(&CallLabels { command, code }).inc();
        self.cni_seconds.get_or_create(&CommandLabels { command }).observe(total.as_secs_f64());
        for (step, took) in steps {
            self.cni_steps.get_or_create(&StepLabels { command, step }).observe(took.as_secs_f64());
        }
    }

    /// Counts a restored CNI file.
    pub fn cni_file_restored(&self, file: &'static str) {
        self.cni_files_restored.get_or_create(&FileLabels { file }).inc();
    }

    /// Sets the number of CNI configuration files that the container runtime prefers to that of Slipstream.
    pub fn cni_configurations_before(&self, count: usize) {
        self.cni_configurations_before.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a failed request to the Kubernetes API or a broken watch.
    pub fn api_failure(&self, call: &'static str) {
        self.api_failures.get_or_create(&CallOfApi { call }).inc();
    }

    /// Counts a restored setting of ovn-controller.
    pub fn chassis_restored(&self, key: &str) {
        self.chassis_restored.get_or_create(&KeyLabels { key: key.to_owned() }).inc();
    }

    /// Counts a restored object of the gateway.
    pub fn gateway_restored(&self, what: &'static str) {
        self.gateway_restored.get_or_create(&WhatLabels { what }).inc();
    }

    /// Counts that services were translated although OVS's datapath did not follow its tables in time.
    pub fn datapath_unconfirmed(&self) {
        self.datapath_unconfirmed.inc();
    }

    /// Counts a failed attempt to end tracked UDP connections to a removed backend.
    pub fn stale_udp_failed(&self) {
        self.stale_udp_failed.inc();
    }

    /// Counts tracked UDP connections that were listed and ended.
    pub fn stale_udp_ended(&self, connections: u64) {
        self.stale_udp_ended.inc_by(connections);
    }

    /// Counts an uplink migration that was undone.
    pub fn gateway_given_back(&self) {
        self.gateway_given_back.inc();
    }

    /// Sets, for each flag in `all`, whether its value differs from that of the controller (`differing`).
    pub fn network_differs(&self, all: &[&'static str], differing: &[&'static str]) {
        for &flag in all {
            let differs = differing.contains(&flag);
            self.network_differs.get_or_create(&FlagLabels { flag }).set(i64::from(differs));
        }
    }

    /// Registers metrics of another module. Names get the prefix `slipstream_node_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// Encodes all metrics in the Prometheus text format.
    ///
    /// # Errors
    /// A collector failed.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry.lock())?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_people_graph() {
        let metrics = Metrics::default();
        metrics.cni_call("ADD", 11, Duration::from_millis(2), [("pair", Duration::from_millis(1))]);
        let text = metrics.encode().unwrap();
        for line in [
            r#"slipstream_node_cni_calls_total{command="ADD",code="11"} 1"#,
            r#"slipstream_node_cni_step_seconds_count{command="ADD",step="pair"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
