//! [`View`]: interface of the admin socket to the node and its flow cache.

use crate::flow_cache::CacheControl;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::audit_metrics::AuditMetrics;
use super::collect;
use super::error::AdminError;
use super::info_metrics::InfoCollector;
use super::naming::Naming;
use super::versions::versions;
use super::xdp_metrics::XdpCollector;
use crate::flow_cache::FlowCache;
use crate::node::Node;
use crate::ovs::unixctl::Unixctl;
use api::admin::{self as wire, CacheStatus, Endpoint, Path, PathStatus};
use ovsdb_client::vswitch::Interface;

/// Ports of br-int.
pub trait Ports {
    /// OpenFlow port number of the port called `name`.
    fn number(&self, name: &str) -> Option<i64>;
    /// OpenFlow port number and local address of the tunnel to `remote`.
    fn tunnel(&self, remote: IpAddr) -> Option<(i64, Option<IpAddr>)>;
}

/// Interface of the admin socket to the node. Methods may block.
pub trait View: Send + Sync {
    /// Control socket of ovs-vswitchd; `None` if it is not on this node.
    fn unixctl(&self) -> Option<Unixctl>;
    /// True when OVS uses the kernel datapath.
    fn kernel_datapath(&self) -> bool;
    /// Ports of br-int.
    fn ports(&self) -> &dyn Ports;
    /// Counts an audited flow. `diverged`: an entry in use differs from OVS's verdict.
    fn audited(&self, verdict: wire::Verdict, diverged: bool);
    /// The flow cache; `None` without eBPF programs.
    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>>;
    /// Control of the flow cache; `None` without one.
    fn control(&self) -> Option<Arc<dyn CacheControl>>;
    /// Current names of pods and nodes.
    fn naming(&self) -> Naming;
    /// Path of the node and the reason for it.
    fn path(&self) -> PathStatus;
    /// Status of the node.
    ///
    /// # Errors
    /// The maps of the flow cache cannot be read.
    fn status(&self) -> Result<wire::Status, AdminError>;
    /// Milliseconds of a monotonic clock.
    fn now_ms(&self) -> u64;
}

/// The node of this agent, as seen by the admin socket.
#[derive(Debug, Clone)]
pub struct NodeView {
    node: Node,
    name: String,
    control: Option<Arc<dyn CacheControl>>,
    start: Instant,
    unixctl: Option<Unixctl>,
    metrics: AuditMetrics,
}

impl NodeView {
    /// View of the node called `name`.
    pub fn new(node: Node, name: &str, control: Option<Arc<dyn CacheControl>>, ovs_db: &str) -> Self {
        let metrics = AuditMetrics::default();
        node.metrics.register(|registry| {
            metrics.register(registry);
            let (health, ovs, pods) = (node.health.clone(), node.ovs.clone(), node.pods.clone());
            registry.register_collector(Box::new(InfoCollector::new(health, ovs, pods)));
            registry.register_collector(Box::new(XdpCollector::new(Arc::clone(&node.datapath))));
        });
        let (name, start) = (name.to_owned(), Instant::now());
        Self { node, name, control, start, unixctl: Unixctl::beside(ovs_db), metrics }
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

/// Pods of a node on which all take the same path.
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
        if let (true, Some(control)) = (diverged, &self.control) {
            control.diverged();
        }
    }

    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>> {
        self.node.datapath.flow_cache.clone()
    }

    fn control(&self) -> Option<Arc<dyn CacheControl>> {
        self.control.clone()
    }

    fn naming(&self) -> Naming {
        Naming::of(&self.node)
    }

    fn path(&self) -> PathStatus {
        let datapath = &self.node.datapath;
        match &self.control {
            Some(control) => control.status().node,
            // Without a flow cache the programs forward to OVS and count.
            None => PathStatus { path: Path::Ovs, reason: datapath.reason.clone() },
        }
    }

    fn status(&self) -> Result<wire::Status, AdminError> {
        let (node, datapath) = (&self.node, &self.node.datapath);
        let (mut maps, mut packet_reasons) = (Vec::new(), BTreeMap::new());
        let (mut epoch, mut diverged) = (0, BTreeSet::new());
        if let Some(cache) = self.flow_cache() {
            maps = collect::maps(&datapath.pressure.read(&*cache)?);
            let reasons = cache.reasons()?;
            let counted = reasons.into_iter().filter(|(_, count)| *count > 0);
            packet_reasons = counted.map(|(name, count)| (name.as_str().to_owned(), count)).collect();
            epoch = cache.epoch()?;
            diverged = collect::diverged(&cache.endpoints()?, epoch);
        }
        let steered = self.control.as_ref().map(|control| control.status());
        let mut endpoints = self.endpoints(steered.as_ref());
        for endpoint in endpoints.iter_mut().filter(|e| diverged.contains(&e.id)) {
            endpoint.path = PathStatus::ovs(format!(
                "divergence: OVS's verdict differed from the cached entry in epoch {epoch}"
            ));
        }
        let problems = node.problems();
        let met = |reason: Option<String>| reason.unwrap_or_else(|| "met".to_owned());
        let conditions =
            node.health.list().into_iter().map(|(name, reason)| (name.to_owned(), met(reason))).collect();
        Ok(wire::Status {
            node: self.name.clone(),
            path: self.path(),
            attach: datapath.attach.as_str().to_owned(),
            ovs_datapath: datapath.ovs_type().to_owned(),
            xdp: datapath.xdp().to_string(),
            ready: problems.is_empty(),
            problems,
            warnings: node.health.warnings(),
            conditions,
            mtu: node.mtu,
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
