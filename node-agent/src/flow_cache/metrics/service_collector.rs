//! Prometheus metrics of services: packets, bytes and connections by service, backend and path, as of the last round over the flow
//! cache's entries, which is every ten seconds. The number of series is bounded: see `docs/slipctl.md`.

use api::admin::Amount;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::collector::{Count, write};
use crate::flow_cache::services::stats::ServiceStats;
use crate::flow_cache::services::{Backend, Services, Sums, Totals};

/// Label `service` of the backends that have no figures of their own.
const OTHERS: &str = "other";

/// Exports the sums of all services.
#[derive(Debug)]
pub struct ServiceCollector(Services);

impl ServiceCollector {
    /// Exports `services`.
    pub fn new(services: Services) -> Self {
        Self(services)
    }
}

type Labels = Vec<(&'static str, String)>;

/// Labels of a backend, and its sums.
fn rows(stats: &ServiceStats) -> Vec<(Labels, Totals)> {
    let labels = |service: String, port: String, protocol: String, backend: String| {
        vec![("service", service), ("port", port), ("protocol", protocol), ("backend", backend)]
    };
    let named = stats.backends().map(|(of, totals)| {
        let Backend { service, port, protocol, address } = of;
        (labels(service.to_string(), port.clone(), protocol.to_string(), address.to_string()), *totals)
    });
    let others = Some(*stats.others()).filter(|others| *others != Totals::default());
    let others =
        others.map(|totals| (labels(OTHERS.to_owned(), String::new(), String::new(), String::new()), totals));
    named.chain(others).collect()
}

/// Sums by path. Of OVS there is something only where a service was kept off the cache.
fn by_path(totals: &Totals) -> impl Iterator<Item = (&'static str, Sums)> {
    let slow = Some(totals.slow).filter(|slow| *slow != Sums::default());
    [("fast", totals.fast)].into_iter().chain(slow.map(|slow| ("slow", slow)))
}

fn amounts(rows: &[(Labels, Totals)], value: fn(&Amount) -> u64) -> Vec<Count> {
    let of = |(labels, totals): &(Labels, Totals)| -> Vec<Count> {
        let sums = by_path(totals).flat_map(|(path, sums)| {
            [(path, "to_backend", sums.to_backend), (path, "from_backend", sums.from_backend)]
        });
        sums.map(|(path, direction, amount)| {
            let more = [("direction", direction.to_owned()), ("path", path.to_owned())];
            Count { labels: [labels.as_slice(), &more].concat(), value: value(&amount) }
        })
        .collect()
    };
    rows.iter().flat_map(of).collect()
}

fn connections(rows: &[(Labels, Totals)]) -> Vec<Count> {
    let of = |(labels, totals): &(Labels, Totals)| -> Vec<Count> {
        by_path(totals)
            .map(|(path, sums)| {
                let more = [("path", path.to_owned())];
                Count { labels: [labels.as_slice(), &more].concat(), value: sums.connections }
            })
            .collect()
    };
    rows.iter().flat_map(of).collect()
}

impl Collector for ServiceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let rows = self.0.with_stats(rows);
        let packets = "Packets of services, by backend, direction and path; path slow counts while the service is kept off the flow cache";
        write(&mut encoder, "service_packets", packets, MetricType::Counter, &amounts(&rows, |a| a.packets))?;
        let bytes = "Bytes of the packets in service_packets";
        write(&mut encoder, "service_bytes", bytes, MetricType::Counter, &amounts(&rows, |a| a.bytes))?;
        let help = "Connections to services that the flow cache has seen begin, by backend and path";
        write(&mut encoder, "service_connections", help, MetricType::Counter, &connections(&rows))?;
        let help = "Number of services that are kept off the flow cache";
        let slow = i64::try_from(self.0.slow().len()).unwrap_or(i64::MAX);
        encoder.encode_descriptor("slow_services", help, None, MetricType::Gauge)?.encode_gauge(&slow)?;
        let help = "Failed changes of which services are kept off the flow cache";
        let mut failures =
            encoder.encode_descriptor("service_path_failures", help, None, MetricType::Counter)?;
        failures.encode_counter::<[(&str, &str); 0], u64, u64>(&self.0.failures().get(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_cache::services::tests::{Bed, WEB, entry};
    use crate::metrics::Metrics;

    fn exported(services: &Services) -> String {
        let metrics = Metrics::default();
        metrics.register(|registry| {
            registry.register_collector(Box::new(ServiceCollector::new(services.clone())));
        });
        metrics.encode().unwrap()
    }

    #[test]
    fn a_backend_is_counted_by_path_and_its_counters_stay_when_its_entries_end() {
        let bed = Bed::new();
        bed.round(&[]);
        bed.round(&[entry(false, 5)]);
        bed.round(&[]);
        let of = r#"service="shop/web",port="http",protocol="tcp",backend="10.244.0.3:8080""#;
        let text = exported(&bed.services);
        for line in [
            format!(r#"slipstream_node_service_packets_total{{{of},direction="to_backend",path="fast"}} 5"#),
            format!(r#"slipstream_node_service_bytes_total{{{of},direction="to_backend",path="fast"}} 500"#),
            format!(r#"slipstream_node_service_connections_total{{{of},path="fast"}} 1"#),
            "slipstream_node_slow_services 0".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} in\n{text}");
        }
        assert!(!text.contains(r#"path="slow""#), "{text}");
        bed.services.set(&WEB.parse().unwrap(), api::admin::Path::Ovs).unwrap();
        bed.round(&[entry(true, 3)]);
        let text = exported(&bed.services);
        let line =
            format!(r#"slipstream_node_service_packets_total{{{of},direction="to_backend",path="slow"}} 3"#);
        assert!(text.contains(&line) && text.contains("slipstream_node_slow_services 1"), "{text}");
    }
}
