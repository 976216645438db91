//! The eBPF side of [`crate::datapath`]: the same calls, worded for `bpf`.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::bpf::{self, EndpointConfig};
use crate::datapath::{Endpoint, Programs};
use crate::fast_path::FastPath;
use crate::metrics::{Count, DatapathCounts};

/// Loaded programs. One for the node.
#[derive(Debug)]
pub struct Loaded {
    inner: Arc<Mutex<bpf::Datapath>>,
}

impl Loaded {
    /// Loads the programs and takes over what is pinned under `dir`. The error says why this node cannot.
    pub fn load(dir: &Path, options: bpf::Options) -> Result<Self, String> {
        let inner = bpf::Datapath::load_with(dir, options).map_err(|e| chain(&e))?;
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// The flow cache of these programs.
    pub fn fast_path(&self) -> Result<Arc<dyn FastPath>, String> {
        let cache = bpf::FlowCache::open(self.shared()).map_err(|e| chain(&e))?;
        Ok(Arc::new(cache))
    }

    /// The same programs, for those who attach the uplink.
    pub fn shared(&self) -> Arc<Mutex<bpf::Datapath>> {
        Arc::clone(&self.inner)
    }
}

/// An error with all its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

fn mode(shim: Option<(u32, u32)>) -> bpf::Mode {
    shim.map_or(bpf::Mode::Direct, |(agent_end, ovs_end)| bpf::Mode::Interposed { agent_end, ovs_end })
}

impl Programs for Loaded {
    fn add(&self, endpoint: &Endpoint) -> Result<(), String> {
        let config = EndpointConfig {
            id: endpoint.id.clone(),
            host_ifindex: endpoint.host,
            mode: mode(endpoint.shim),
            addresses: endpoint.addresses.iter().map(|a| a.addr()).collect::<Vec<IpAddr>>(),
            mac: endpoint.mac.0,
            shares_ingress: endpoint.shares_ingress,
        };
        self.inner.lock().add_endpoint(&config).map_err(|e| chain(&e))
    }

    fn remove(&self, id: &str) -> Result<(), String> {
        self.inner.lock().remove_endpoint(id).map_err(|e| e.to_string())
    }

    fn list(&self) -> Result<Vec<(String, bool)>, String> {
        // One taken over from another map layout has lost what is bound to it, and is brought up to date.
        let whole = |e: &bpf::Endpoint| e.alive && e.mac != [0; 6];
        Ok(self.inner.lock().endpoints().into_iter().map(|e| (e.id.clone(), whole(&e))).collect())
    }

    fn entries(&self) -> Result<usize, String> {
        self.inner.lock().port_entries().map(|e| e.len()).map_err(|e| chain(&e))
    }

    fn counts(&self) -> Result<DatapathCounts, String> {
        let mut inner = self.inner.lock();
        // Made-up VNIs must not keep the real ones out for good; does nothing while there is room.
        if let Err(error) = inner.prune_tunnels() {
            tracing::warn!(error = chain(&error), "cannot prune the tunnel counters");
        }
        let mut counts = DatapathCounts::default();
        for (key, value) in inner.tunnel_stats().map_err(|e| chain(&e))? {
            let count = |direction: &str, value| Count {
                labels: vec![
                    ("remote", bpf::tunnel_remote(&key).to_string()),
                    ("vni", key.vni.to_string()),
                    ("direction", direction.to_owned()),
                ],
                value,
            };
            counts.tunnel_packets.extend([count("in", value.rx().packets), count("out", value.tx().packets)]);
            counts.tunnel_bytes.extend([count("in", value.rx().bytes), count("out", value.tx().bytes)]);
        }
        for (endpoint, value) in inner.endpoint_stats().map_err(|e| chain(&e))? {
            let count = |direction: &str, value| Count {
                labels: vec![("endpoint", endpoint.clone()), ("direction", direction.to_owned())],
                value,
            };
            counts
                .endpoint_packets
                .extend([count("from", value.from().packets), count("to", value.to().packets)]);
            counts.endpoint_bytes.extend([count("from", value.from().bytes), count("to", value.to().bytes)]);
        }
        for (reason, value) in inner.reasons().map_err(|e| chain(&e))? {
            if !reason.is_malformed() {
                continue;
            }
            let labels = vec![("reason", reason.as_str().to_owned())];
            counts.malformed_packets.push(Count { labels, value });
        }
        Ok(counts)
    }
}
