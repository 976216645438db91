//! Counters and histograms of the agent, in the Prometheus text format.

mod fast_path;

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::cni::steps::Steps;
use crate::ctl::pressure::PressureCache;
use crate::datapath::Datapath;

/// All of them. Clones share them.
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
            "CNI calls by command and result code, 0 for success",
            cni_calls.clone(),
        );
        registry.register(
            "cni_seconds",
            "Duration of CNI calls from the executable's start",
            cni_seconds.clone(),
        );
        registry.register(
            "cni_step_seconds",
            "Duration of the steps of CNI calls; some run side by side",
            cni_steps.clone(),
        );
        let cni_files_restored = Family::default();
        registry.register(
            "cni_files_restored",
            "CNI configuration or executable written again after somebody changed or removed it",
            cni_files_restored.clone(),
        );
        let cni_configurations_before = Gauge::default();
        registry.register(
            "cni_configurations_before_ours",
            "Files that the container runtime takes before our CNI configuration",
            cni_configurations_before.clone(),
        );
        let api_failures = Family::default();
        registry.register(
            "api_failures",
            "Calls of the Kubernetes API that failed or took too long, and watches that broke",
            api_failures.clone(),
        );
        let chassis_restored = Family::default();
        registry.register(
            "chassis_settings_restored",
            "Settings of ovn-controller in Open_vSwitch that somebody changed and that were put back",
            chassis_restored.clone(),
        );
        let network_differs = Family::default();
        registry.register(
            "cluster_network_differs",
            "1 for a flag of the cluster's network that the controller was given with another value",
            network_differs.clone(),
        );
        let gateway_restored = Family::default();
        registry.register(
            "gateway_restored",
            "What the gateway needs and somebody took away, or OVS made anew, and that was put back",
            gateway_restored.clone(),
        );
        let gateway_given_back = Counter::default();
        registry.register(
            "gateway_given_back",
            "Times that the uplink was put back because the API server did not answer through the bridge",
            gateway_given_back.clone(),
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
        }
    }
}

impl Metrics {
    /// Counts one CNI call.
    pub fn cni_call(&self, command: &'static str, code: u32, steps: &Steps) {
        self.cni_calls.get_or_create(&CallLabels { command, code }).inc();
        self.cni_seconds.get_or_create(&CommandLabels { command }).observe(steps.total().as_secs_f64());
        for (step, took) in steps.list() {
            self.cni_steps.get_or_create(&StepLabels { command, step }).observe(took.as_secs_f64());
        }
    }

    /// Counts one file of the container runtime's that had to be written again.
    pub fn cni_file_restored(&self, file: &'static str) {
        self.cni_files_restored.get_or_create(&FileLabels { file }).inc();
    }

    /// Says how many files the runtime takes before ours.
    pub fn cni_configurations_before(&self, count: usize) {
        self.cni_configurations_before.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts one call of the Kubernetes API that failed, or a watch that broke.
    pub fn api_failure(&self, call: &'static str) {
        self.api_failures.get_or_create(&CallOfApi { call }).inc();
    }

    /// Counts one setting of ovn-controller that was put back.
    pub fn chassis_restored(&self, key: &str) {
        self.chassis_restored.get_or_create(&KeyLabels { key: key.to_owned() }).inc();
    }

    /// Counts something of the gateway that was put back.
    pub fn gateway_restored(&self, what: &'static str) {
        self.gateway_restored.get_or_create(&WhatLabels { what }).inc();
    }

    /// Counts one network that the node got back.
    pub fn gateway_given_back(&self) {
        self.gateway_given_back.inc();
    }

    /// Says which flags the controller was given with another value.
    pub fn network_differs(&self, flags: &[&'static str]) {
        for flag in crate::cluster_network::FLAGS {
            let differs = flags.contains(&flag);
            self.network_differs.get_or_create(&FlagLabels { flag }).set(i64::from(differs));
        }
    }

    /// Adds metrics of another part of the agent. Names get the prefix `slipstream_node_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// Adds the data path's counters, read anew at every scrape.
    pub fn watch_datapath(&self, datapath: &Arc<Datapath>) {
        let collector = Box::new(DatapathCollector {
            datapath: Arc::clone(datapath),
            pressure: PressureCache::default(),
        });
        self.registry.lock().register_collector(collector);
    }

    /// The text a scraper reads.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry.lock())?;
        Ok(out)
    }
}

/// A counter of the data path at the moment of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Labels and values.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: u64,
}

/// What the eBPF programs counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatapathCounts {
    /// Geneve packets by `remote`, `vni` and `direction`.
    pub tunnel_packets: Vec<Count>,
    /// Geneve bytes by `remote`, `vni` and `direction`.
    pub tunnel_bytes: Vec<Count>,
    /// Packets by `endpoint` and `direction`.
    pub endpoint_packets: Vec<Count>,
    /// Bytes by `endpoint` and `direction`.
    pub endpoint_bytes: Vec<Count>,
    /// Packets that could not be understood, by `reason`.
    pub malformed_packets: Vec<Count>,
}

#[derive(Debug)]
struct DatapathCollector {
    datapath: Arc<Datapath>,
    pressure: PressureCache,
}

impl Collector for DatapathCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let info = [("path", self.datapath.path()), ("reason", self.datapath.reason.as_str())];
        let mut gauge = encoder.encode_descriptor(
            "datapath",
            "The node's data path and why; always 1",
            None,
            MetricType::Gauge,
        )?;
        gauge.encode_family(&info)?.encode_gauge(&1_i64)?;
        let Some(programs) = &self.datapath.programs else { return Ok(()) };
        let cache = self.datapath.fast_path.as_deref();
        if let Some(cache) = cache {
            fast_path::encode(cache, self.pressure.read(cache), &mut encoder)?;
        }
        let counts = match programs.counts() {
            Ok(counts) => counts,
            Err(error) => {
                tracing::warn!(error, "counters of the eBPF programs cannot be read");
                return Ok(());
            }
        };
        for (name, help, list) in [
            ("malformed_packets", "Packets that could not be understood", counts.malformed_packets),
            ("tunnel_packets", "Geneve packets", counts.tunnel_packets),
            ("tunnel_bytes", "Geneve bytes, outer headers included", counts.tunnel_bytes),
            ("endpoint_packets", "Packets of pods", counts.endpoint_packets),
            ("endpoint_bytes", "Bytes of pods", counts.endpoint_bytes),
        ] {
            // The flow cache counts the same packets, by path.
            if cache.is_some() && name != "malformed_packets" {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for count in list {
                family
                    .encode_family(&count.labels)?
                    .encode_counter::<[(&str, &str); 0], u64, u64>(&count.value, None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{Endpoint, Programs};

    #[derive(Debug)]
    struct Fixed;

    impl Programs for Fixed {
        fn add(&self, _: &Endpoint) -> Result<(), String> {
            Ok(())
        }
        fn remove(&self, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn list(&self) -> Result<Vec<(String, bool)>, String> {
            Ok(Vec::new())
        }
        fn entries(&self) -> Result<usize, String> {
            Ok(0)
        }
        fn counts(&self) -> Result<DatapathCounts, String> {
            let labels = vec![
                ("remote", "172.18.0.3".to_owned()),
                ("vni", "5".to_owned()),
                ("direction", "out".to_owned()),
            ];
            Ok(DatapathCounts {
                tunnel_packets: vec![Count { labels, value: 7 }],
                ..DatapathCounts::default()
            })
        }
    }

    #[test]
    fn with_a_flow_cache_packets_are_counted_once_and_by_path() {
        let metrics = Metrics::default();
        let mut datapath = Datapath::ovs_only(true, false, "asked for");
        datapath.programs = Some(Arc::new(Fixed));
        datapath.fast_path = Some(Arc::new(crate::ctl::fake::Fake::default()));
        metrics.watch_datapath(&Arc::new(datapath));
        let text = metrics.encode().unwrap();
        for line in [
            r#"slipstream_node_tunnel_packets_total{remote="172.18.0.3",vni="5",direction="out",path="fast"} 7"#,
            r#"slipstream_node_tunnel_bytes_total{remote="172.18.0.3",vni="5",direction="in",path="slow"} 100"#,
            r#"slipstream_node_endpoint_packets_total{endpoint="c0ffee01",direction="to",path="fast"} 3"#,
            r#"slipstream_node_packet_reasons_total{reason="tcp_flags"} 4"#,
            r#"slipstream_node_map_entries{map="FLOW_EGRESS"} 3"#,
            r#"slipstream_node_map_capacity{map="FLOW_EGRESS"} 262144"#,
            "slipstream_node_fastpath_epoch 7",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert_eq!(text.matches("# TYPE slipstream_node_tunnel_packets counter").count(), 1, "{text}");
        assert!(!text.contains(r#"direction="out"} 7"#), "{text}");
    }

    #[test]
    fn names_and_labels_are_those_people_graph() {
        let metrics = Metrics::default();
        let mut datapath = Datapath::ovs_only(true, false, "asked for");
        datapath.programs = Some(Arc::new(Fixed));
        metrics.watch_datapath(&Arc::new(datapath));
        let mut steps = Steps::new(0);
        steps.add("pair", std::time::Duration::from_millis(1));
        metrics.cni_call("ADD", 11, &steps);
        let text = metrics.encode().unwrap();
        for line in [
            r#"slipstream_node_cni_calls_total{command="ADD",code="11"} 1"#,
            r#"slipstream_node_cni_step_seconds_count{command="ADD",step="pair"} 1"#,
            r#"slipstream_node_tunnel_packets_total{remote="172.18.0.3",vni="5",direction="out"} 7"#,
            r#"slipstream_node_datapath{path="ebpf",reason="asked for"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
