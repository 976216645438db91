//! What was measured: rates of each path, and their ratio. Pure.

use std::time::Duration;

use api::admin::{Amount, Path, PathTotals, ServicePath, ServiceTotals};
use serde::Serialize;

/// What one path carried in one part of the time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slice {
    path: Path,
    round: u32,
    seconds: f64,
    counted: PathTotals,
    cpu: Option<f64>,
}

impl Slice {
    /// What `path` carried between two readings. `cpu`: CPUs that were busy.
    pub(super) fn between(
        path: Path,
        round: u32,
        before: &ServiceTotals,
        now: &ServiceTotals,
        cpu: Option<f64>,
    ) -> Self {
        let milliseconds = now.at_ms.saturating_sub(before.at_ms).max(1);
        let (before, now) = (sum(before, path), sum(now, path));
        let more = |before: Amount, now: Amount| Amount {
            packets: now.packets.saturating_sub(before.packets),
            bytes: now.bytes.saturating_sub(before.bytes),
        };
        let counted = PathTotals {
            to_backend: more(before.to_backend, now.to_backend),
            from_backend: more(before.from_backend, now.from_backend),
            connections: now.connections.saturating_sub(before.connections),
        };
        Self { path, round, seconds: Duration::from_millis(milliseconds).as_secs_f64(), counted, cpu }
    }
}

/// Sum over all ports and backends.
fn sum(totals: &ServiceTotals, path: Path) -> PathTotals {
    let plus = |a: Amount, b: Amount| Amount { packets: a.packets + b.packets, bytes: a.bytes + b.bytes };
    let of_path = totals.backends.iter().map(|backend| match path {
        Path::Ebpf => backend.fast,
        Path::Ovs => backend.slow,
    });
    of_path.fold(PathTotals::default(), |all, one| PathTotals {
        to_backend: plus(all.to_backend, one.to_backend),
        from_backend: plus(all.from_backend, one.from_backend),
        connections: all.connections + one.connections,
    })
}

/// The rates of one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rates {
    /// Seconds measured.
    pub(crate) seconds: f64,
    /// Packets a second from clients.
    pub(crate) packets_to_backend: f64,
    /// Packets a second to clients.
    pub(crate) packets_from_backend: f64,
    /// Bytes a second in both directions.
    pub(crate) bytes: f64,
    /// New connections a second.
    pub(crate) connections: f64,
    /// CPUs of the machine that were busy, with whatever; `None` where it cannot be told.
    pub(crate) busy_cpus: Option<f64>,
    /// Packets of the service for each second of CPU time of the machine.
    pub(crate) packets_per_cpu_second: Option<f64>,
}

impl Rates {
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    fn of<'a>(slices: impl Iterator<Item = &'a Slice> + Clone) -> Self {
        let seconds: f64 = slices.clone().map(|slice| slice.seconds).sum();
        let rate = |count: fn(&PathTotals) -> u64| {
            let all: u64 = slices.clone().map(|slice| count(&slice.counted)).sum();
            if seconds > 0.0 { all as f64 / seconds } else { 0.0 }
        };
        let (to, from) = (rate(|c| c.to_backend.packets), rate(|c| c.from_backend.packets));
        let cpu: Option<f64> = slices.clone().map(|slice| slice.cpu.map(|cpu| cpu * slice.seconds)).sum();
        let busy_cpus = cpu.filter(|_| seconds > 0.0).map(|cpu| cpu / seconds);
        Self {
            seconds,
            packets_to_backend: to,
            packets_from_backend: from,
            bytes: rate(|c| c.to_backend.bytes + c.from_backend.bytes),
            connections: rate(|c| c.connections),
            busy_cpus,
            packets_per_cpu_second: busy_cpus.filter(|busy| *busy > 0.0).map(|busy| (to + from) / busy),
        }
    }

    fn packets(&self) -> f64 {
        self.packets_to_backend + self.packets_from_backend
    }
}

/// Figures of a service by both paths.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Comparison {
    /// `NAMESPACE/NAME`.
    pub(crate) service: String,
    /// The path before and afterwards.
    pub(crate) path: Path,
    /// By OVS.
    pub(crate) ovs: Rates,
    /// By the flow cache.
    pub(crate) ebpf: Rates,
    /// Packets by the flow cache, as multiples of those by OVS: in each round. `None`: one of them had none.
    pub(crate) rounds: Vec<Option<f64>>,
}

impl Comparison {
    pub(super) fn new(before: ServicePath, slices: &[Slice]) -> Self {
        let of = |path| Rates::of(slices.iter().filter(move |slice| slice.path == path));
        let last = slices.iter().map(|slice| slice.round).max().map_or(0, |last| last + 1);
        let in_round = |round| {
            let of = |path| {
                Rates::of(slices.iter().filter(move |slice| slice.path == path && slice.round == round))
            };
            ratio(of(Path::Ebpf).packets(), of(Path::Ovs).packets())
        };
        Self {
            service: before.service,
            path: before.path.path,
            ovs: of(Path::Ovs),
            ebpf: of(Path::Ebpf),
            rounds: (0..last).map(in_round).collect(),
        }
    }

    /// Whether any packet was seen.
    pub(crate) fn has_traffic(&self) -> bool {
        self.ovs.packets() + self.ebpf.packets() > 0.0
    }
}

/// `None` if one of them is nothing.
pub(crate) fn ratio(one: f64, other: f64) -> Option<f64> {
    (one > 0.0 && other > 0.0).then(|| one / other)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn before() -> ServicePath {
        serde_json::from_value(serde_json::json!({
            "service": "shop/web", "wanted": "ebpf", "temporary": false, "path": "ebpf", "reason": "", "addresses": []
        }))
        .unwrap()
    }

    /// Readings of two backends.
    fn totals(at_ms: u64, fast: u64, slow: u64) -> ServiceTotals {
        let of = |packets: u64| PathTotals {
            to_backend: Amount { packets, bytes: packets * 100 },
            from_backend: Amount { packets: packets / 2, bytes: packets * 50 },
            connections: packets / 100,
        };
        let backend = |port: u16| api::admin::BackendTotals {
            port: String::new(),
            protocol: api::admin::CachedProtocol::Tcp,
            address: ([10, 244, 0, 3], port).into(),
            fast: of(fast),
            slow: of(slow),
        };
        ServiceTotals { at_ms, service: before(), backends: vec![backend(1), backend(2)] }
    }

    pub(in super::super) fn measured() -> Comparison {
        let slice = |path, round, from: (u64, u64), to: (u64, u64), cpu| {
            Slice::between(path, round, &totals(1_000, from.0, from.1), &totals(3_000, to.0, to.1), Some(cpu))
        };
        let slices = [
            // What the other path counts meanwhile is not this one's.
            slice(Path::Ovs, 0, (0, 0), (999, 100), 2.0),
            slice(Path::Ebpf, 0, (1_000, 100), (2_000, 100), 1.0),
            slice(Path::Ebpf, 1, (2_000, 100), (5_000, 100), 1.0),
            slice(Path::Ovs, 1, (5_000, 100), (5_000, 300), 2.0),
        ];
        Comparison::new(before(), &slices)
    }

    #[test]
    fn rates_are_sums_over_backends_and_parts_by_the_time_of_the_path() {
        let Comparison { ovs, ebpf, rounds, .. } = measured();
        assert_eq!((ovs.seconds, ovs.packets_to_backend, ovs.packets_from_backend), (4.0, 150.0, 75.0));
        assert_eq!((ebpf.seconds, ebpf.packets_to_backend, ebpf.bytes), (4.0, 2_000.0, 300_000.0));
        assert_eq!((ovs.connections, ebpf.connections), (1.5, 20.0));
        assert_eq!((ovs.busy_cpus, ebpf.busy_cpus), (Some(2.0), Some(1.0)));
        assert_eq!(ebpf.packets_per_cpu_second, Some(3_000.0));
        assert_eq!(rounds, [Some(10.0), Some(15.0)]);
    }

    #[test]
    fn without_traffic_there_is_no_ratio_and_without_a_clock_no_cpu_time() {
        let slice = |path| Slice::between(path, 0, &totals(0, 7, 7), &totals(1_000, 7, 7), None);
        let found = Comparison::new(before(), &[slice(Path::Ovs), slice(Path::Ebpf)]);
        assert!(!found.has_traffic() && measured().has_traffic());
        assert_eq!((found.rounds.as_slice(), found.ovs.busy_cpus), (&[None][..], None));
    }
}
