//! What the admin socket looks at: the node, its flow cache, and who steers that.

use crate::flow_cache::CacheControl;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::audit::Ports;
use super::audit_metrics::AuditMetrics;
use super::collect;
use super::error::AdminError;
use super::naming::Naming;
use super::versions::versions;
use crate::flow_cache::FlowCache;
use crate::flow_cache::pressure_cache::PressureCache;
use crate::node::Node;
use crate::ovs::unixctl::Unixctl;
use api::admin::{self as wire, CacheStatus, Endpoint, Path, PathStatus};
use ovsdb_client::vswitch::Interface;

/// What is looked at. Calls may block.
pub trait View: Send + Sync {
    /// ovs-vswitchd, if it is on this machine.
    fn unixctl(&self) -> Option<Unixctl>;
    /// OVS forwards in the kernel.
    fn kernel_datapath(&self) -> bool;
    /// Ports of br-int.
    fn ports(&self) -> &dyn Ports;
    /// A flow was audited. `diverged`: the cache does something else than OVS would, and packets use it.
    fn audited(&self, verdict: wire::Verdict, diverged: bool);
    /// The flow cache, if the node has one.
    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>>;
    /// Who steers it.
    fn steering(&self) -> Option<Arc<dyn CacheControl>>;
    /// Names of pods and nodes now.
    fn naming(&self) -> Naming;
    /// The node's path and why.
    fn path(&self) -> PathStatus;
    /// Everything about the node.
    fn status(&self) -> Result<wire::Status, AdminError>;
    /// Milliseconds on a clock that never jumps.
    fn now_ms(&self) -> u64;
}

/// The node of this agent.
#[derive(Debug, Clone)]
pub struct NodeView {
    node: Node,
    name: String,
    steering: Option<Arc<dyn CacheControl>>,
    pressure: PressureCache,
    start: Instant,
    unixctl: Option<Unixctl>,
    metrics: AuditMetrics,
}

impl NodeView {
    /// The node called `name`.
    pub fn new(
        node: Node,
        name: &str,
        steering: Option<Arc<dyn CacheControl>>,
        pressure: PressureCache,
        ovs_db: &str,
    ) -> Self {
        let metrics = AuditMetrics::default();
        node.metrics.register(|registry| metrics.register(registry));
        let (name, start) = (name.to_owned(), Instant::now());
        Self { node, name, steering, pressure, start, unixctl: Unixctl::beside(ovs_db), metrics }
    }

    fn endpoints(&self, steered: Option<&CacheStatus>) -> Vec<Endpoint> {
        let Some(steered) = steered else { return endpoints(&self.naming(), &self.path()) };
        let naming = self.naming();
        let mut list: Vec<Endpoint> = steered
            .endpoints
            .iter()
            .map(|e| Endpoint {
                pod: naming.pod(&e.id),
                addresses: naming.pods.get(&e.id).map(|named| named.addresses.clone()).unwrap_or_default(),
                id: e.id.clone(),
                path: e.path.clone(),
            })
            .collect();
        list.sort_by(|a, b| (&a.pod, &a.id).cmp(&(&b.pod, &b.id)));
        list
    }
}

/// Pods of a node where all take one path.
fn endpoints(naming: &Naming, path: &PathStatus) -> Vec<Endpoint> {
    let mut list: Vec<Endpoint> = naming
        .pods
        .iter()
        .map(|(id, named)| Endpoint {
            id: id.clone(),
            pod: Some(named.pod.clone()),
            addresses: named.addresses.clone(),
            path: path.clone(),
        })
        .collect();
    list.sort_by(|a, b| a.pod.cmp(&b.pod));
    list
}

impl Ports for NodeView {
    fn number(&self, name: &str) -> Option<i64> {
        self.node.ovs.interface(name)?.ofport.filter(|port| *port > 0)
    }

    fn tunnel(&self, remote: IpAddr) -> Option<(i64, Option<IpAddr>)> {
        let snapshot = self.node.ovs.replica().read();
        let interfaces = snapshot.table::<Interface>();
        let address = |row: &Interface, key: &str| row.options.get(key)?.parse::<IpAddr>().ok();
        let mut tunnels = interfaces.iter().filter(|row| row.r#type == "geneve");
        let row = tunnels.find(|row| address(row, "remote_ip") == Some(remote))?;
        Some((row.ofport.filter(|port| *port > 0)?, address(row, "local_ip")))
    }
}

impl View for NodeView {
    fn unixctl(&self) -> Option<Unixctl> {
        self.unixctl.clone()
    }

    fn kernel_datapath(&self) -> bool {
        !self.node.datapath.netdev
    }

    fn ports(&self) -> &dyn Ports {
        self
    }

    fn audited(&self, verdict: wire::Verdict, diverged: bool) {
        self.metrics.count(verdict);
        if let (true, Some(steering)) = (diverged, &self.steering) {
            steering.diverged();
        }
    }

    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>> {
        self.node.datapath.flow_cache.clone()
    }

    fn steering(&self) -> Option<Arc<dyn CacheControl>> {
        self.steering.clone()
    }

    fn naming(&self) -> Naming {
        Naming::of(&self.node)
    }

    fn path(&self) -> PathStatus {
        let datapath = &self.node.datapath;
        match &self.steering {
            Some(steering) => steering.status().node,
            // Programs without a flow cache carry the slow path and count.
            None => PathStatus { path: Path::Ovs, reason: datapath.reason.clone() },
        }
    }

    fn status(&self) -> Result<wire::Status, AdminError> {
        let (node, datapath) = (&self.node, &self.node.datapath);
        let (mut maps, mut packet_reasons) = (Vec::new(), BTreeMap::new());
        let (mut epoch, mut diverged) = (0, BTreeSet::new());
        if let Some(cache) = self.flow_cache() {
            maps = collect::maps(&self.pressure.read(&*cache)?);
            let reasons = cache.reasons()?;
            let counted = reasons.into_iter().filter(|(_, count)| *count > 0);
            packet_reasons = counted.map(|(name, count)| (name.as_str().to_owned(), count)).collect();
            epoch = cache.epoch()?;
            diverged = collect::diverged(&cache.endpoints()?, epoch);
        }
        let steered = self.steering.as_ref().map(|steering| steering.status());
        let mut endpoints = self.endpoints(steered.as_ref());
        for endpoint in endpoints.iter_mut().filter(|e| diverged.contains(&e.id)) {
            endpoint.path =
                PathStatus::ovs(format!("OVS answered otherwise than remembered in epoch {epoch}"));
        }
        let problems = node.problems();
        Ok(wire::Status {
            node: self.name.clone(),
            path: self.path(),
            attach: datapath.attach.as_str().to_owned(),
            ovs_datapath: datapath.ovs_type().to_owned(),
            ready: problems.is_empty(),
            problems,
            endpoints,
            cache: steered.map(|status| status.cache),
            versions: versions(node),
            maps,
            packet_reasons,
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
