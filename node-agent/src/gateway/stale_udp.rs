//! Ends tracked UDP connections to backends that are gone.
//!
//! UDP has no end of connection. OVN forgets the connections to a backend together with it (`ct_flush`), but does so while OVS's
//! datapath still has flows to that backend: a client that goes on sending from the same port is tracked again at once, and stays with
//! the old backend for as long as it sends. So the connections are ended again when the datapath has followed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::Context;
use super::services::{Backend, ServiceIndex};
use crate::flow_cache::Manager;
use crate::metrics::Metrics;
use crate::ovs::unixctl::Unixctl;

/// When connections are ended, after the backend was seen to be gone. Controller, OVN and OVS's revalidators take milliseconds on an
/// idle cluster and many seconds on a large busy one.
const AFTER: [Duration; 5] = [
    Duration::from_millis(700),
    Duration::from_secs(2),
    Duration::from_secs(6),
    Duration::from_secs(15),
    Duration::from_secs(40),
];
/// Timeout of a call; OVS walks over all connections.
const LONGEST: Duration = Duration::from_secs(10);

/// Backends that are gone, and which times of [`AFTER`] are over for them.
#[derive(Debug, Default)]
pub(super) struct StaleUdp(BTreeMap<Backend, (Instant, usize)>);

impl StaleUdp {
    /// Adds backends that are gone since `now`.
    pub(super) fn add(&mut self, gone: impl IntoIterator<Item = Backend>, now: Instant) {
        self.0.extend(gone.into_iter().map(|backend| (backend, (now, 0))));
    }

    /// When to call [`Self::due`] next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|(since, done)| Some(*since + *AFTER.get(*done)?)).min()
    }

    /// Backends whose connections are to be ended now. `lives`: whether a service has the backend again.
    pub(super) fn due(&mut self, now: Instant, lives: impl Fn(&Backend) -> bool) -> Vec<Backend> {
        self.0.retain(|backend, _| !lives(backend));
        let mut due = Vec::new();
        for (backend, (since, done)) in &mut self.0 {
            let over = AFTER.iter().filter(|after| now >= *since + **after).count();
            if over > *done {
                *done = over;
                due.push(*backend);
            }
        }
        self.0.retain(|_, (_, done)| *done < AFTER.len());
        due
    }

    /// Ends the connections that are due, in the background.
    pub(super) fn end_due(&mut self, services: &ServiceIndex, context: &Context) {
        let backends = self.due(Instant::now(), |backend| services.has_udp_backend(backend));
        let Some(unixctl) = Unixctl::beside(&context.config.ovs_db) else { return };
        if backends.is_empty() {
            return;
        }
        // As OVS calls them: `lib/dpif.c`, `dpif_netdev` and `dpif_netlink` have one datapath each.
        let datapath = format!("{0}@ovs-{0}", context.datapath_type);
        let (flow_cache, metrics) = (context.flow_cache.clone(), context.metrics.clone());
        tokio::spawn(async move { end(&backends, &unixctl, &datapath, &flow_cache, &metrics).await });
    }
}

/// Ends the tracked UDP connections to these backends in OVS's datapath (`netdev` or `system`), and invalidates the flow cache: its
/// entries repeat what the connections did.
async fn end(
    backends: &[Backend],
    unixctl: &Unixctl,
    datapath: &str,
    flow_cache: &Manager,
    metrics: &Metrics,
) {
    // Nothing may be compared with an entry while connections go.
    flow_cache.connections_end();
    for backend in backends {
        let tuple = reply_tuple(backend);
        let params = [datapath, "", tuple.as_str()];
        match unixctl.call("dpctl/flush-conntrack", &params, LONGEST).await {
            Ok(_) => {
                tracing::debug!(address = %backend.0, port = backend.1, "tracked UDP connections to a removed backend ended")
            }
            Err(error) => {
                metrics.stale_udp_failed();
                tracing::warn!(address = %backend.0, port = backend.1, %error, "cannot end tracked UDP connections to a removed backend; clients that go on sending may stay with it");
            }
        }
    }
    flow_cache.connections_end();
}

/// The connection seen from the backend, in the form of ovs-appctl(8), `dpctl/flush-conntrack`.
fn reply_tuple((address, port): &Backend) -> String {
    let field = match address {
        IpAddr::V4(_) => "ct_nw_src",
        IpAddr::V6(_) => "ct_ipv6_src",
    };
    format!("{field}={address},ct_nw_proto=17,ct_tp_src={port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(last: u8) -> Backend {
        (IpAddr::from([10, 244, 0, last]), 53)
    }

    #[test]
    fn connections_are_ended_some_times_and_not_of_a_backend_that_is_back() {
        let start = Instant::now();
        let mut stale = StaleUdp::default();
        assert_eq!(stale.next(), None);
        stale.add([backend(1), backend(2)], start);
        assert_eq!(stale.next(), Some(start + AFTER[0]));
        assert_eq!(stale.due(start, |_| false), []);
        assert_eq!(stale.due(start + AFTER[0], |_| false), [backend(1), backend(2)]);
        assert_eq!(stale.due(start + AFTER[0], |_| false), []);
        // Two times are over at once.
        assert_eq!(stale.due(start + AFTER[2], |one| *one == backend(2)), [backend(1)]);
        assert_eq!(stale.next(), Some(start + AFTER[3]));
        assert_eq!(stale.due(start + AFTER[4], |_| false), [backend(1)]);
        assert_eq!(stale.next(), None);
    }

    #[test]
    fn a_connection_is_named_by_its_backend() {
        assert_eq!(reply_tuple(&backend(7)), "ct_nw_src=10.244.0.7,ct_nw_proto=17,ct_tp_src=53");
        let six = ("fd00::7".parse().unwrap(), 5353);
        assert_eq!(reply_tuple(&six), "ct_ipv6_src=fd00::7,ct_nw_proto=17,ct_tp_src=5353");
    }
}
