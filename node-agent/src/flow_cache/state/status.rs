//! What the flow cache says of itself.

use std::time::Duration;

use api::admin::{Cache, CacheStatus, GateStatus, PathStatus, UnderlayStatus};

use super::{Decided, Shared};
use crate::flow_cache::cache::Gate;
use crate::flow_cache::invalidation::Tracking;

impl Shared {
    /// Status of the flow cache and of all endpoints.
    pub(in crate::flow_cache) fn status(&self) -> CacheStatus {
        let inner = self.inner.lock();
        let Decided { node, tunnel, gateway, underlay, endpoints, .. } = inner.decided.clone();
        let Gate { forward, learn, tcp, hold } = inner.gate.unwrap_or_default();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let there = self.cache.is_some();
        let cache = Cache {
            wanted: inner.wanted,
            tcp: match (there, inner.engine.tracking()) {
                (false, _) => node.clone(),
                (_, Tracking::Tolerant) => {
                    PathStatus::ebpf("OVS's connection tracking accepts TCP packets of any sequence number")
                }
                (_, Tracking::Unknown) => PathStatus::ovs(
                    "not known yet whether OVS's connection tracking accepts TCP packets of any sequence number",
                ),
                (_, Tracking::Strict(why)) => PathStatus::ovs(why.clone()),
            },
            tunnel,
            gateway,
            underlay: underlay.map(|underlay| UnderlayStatus {
                address: underlay.address,
                mac: underlay.mac.to_string(),
                mtu: underlay.mtu,
            }),
            epoch: self.cache.as_ref().and_then(|cache| cache.epoch().ok()),
            gate: GateStatus { forward, learn, tcp, hold },
            monitor: inner.engine.monitor_health(),
            unsynced_reason: if there {
                inner.engine.unsynced_reason().unwrap_or_default()
            } else {
                String::new()
            },
            hold_ms: inner.engine.held_since().map(|since| milliseconds(since.elapsed())),
            refresh_ms: milliseconds(inner.timing.refresh),
            invalidations: self
                .metrics
                .invalidations()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            scoped_changes: self
                .metrics
                .scoped_changes()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            unscoped_reason: self.unscoped_reason.lock().clone(),
            divergences: inner.divergences,
            slow_services: self.services().slow().iter().map(ToString::to_string).collect(),
            tracking_unheard: self.tracking_unheard.lock().clone(),
        };
        CacheStatus { node, cache, endpoints }
    }
}
