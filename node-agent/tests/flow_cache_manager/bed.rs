//! An agent's flow cache manager with real OVS. Its calls to the cache are recorded.

use ebpf::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::admin::{CacheStatus, MonitorHealth};
use node_agent::datapath::Datapath;
use node_agent::flow_cache::{CacheError, FaultInjection, Settings};
use node_agent::flow_cache::{
    Divergence, EndpointAmounts, Flow, FlowCache, Gate, GatewayEnd, InterfaceAmounts, PhysicalPort, Pressure,
    ScopeChange, Swept, Timing, Tunnel, Underlay,
};
use node_agent::health::Health;
use node_agent::kernel::link::Netlink;
use node_agent::kube::pods::Pods;
use node_agent::metrics::Metrics;
use node_agent::node::Node;
use node_agent::ovs::Ovs;

use crate::ovs::OvsNode;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Calls to the cache, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Invalidate,
    Scopes(ScopeChange),
    Gate(Gate),
    Endpoint(String, bool),
    Underlay(Option<Underlay>),
    Gateway(Option<GatewayEnd>),
    Remotes(BTreeSet<Ipv4Addr>),
}

/// Is called with each invalidation, with the number of invalidations so far.
pub(crate) type Probe = Box<dyn Fn(usize) + Send>;

#[derive(Default)]
pub(crate) struct Recorder {
    calls: Mutex<Vec<(Instant, Call)>>,
    pub(crate) beats: Mutex<u32>,
    pub(crate) probe: Mutex<Option<Probe>>,
    /// Mode bits that the agent before left.
    left: Gate,
}

impl Recorder {
    /// After an agent that left these mode bits.
    pub(crate) fn adopted(left: Gate) -> Self {
        Self { left, ..Self::default() }
    }

    pub(crate) fn note(&self, call: Call) {
        self.calls.lock().unwrap().push((Instant::now(), call));
    }

    pub(crate) fn forget(&self) {
        self.calls.lock().unwrap().clear();
    }

    pub(crate) fn all(&self) -> Vec<Call> {
        self.calls.lock().unwrap().iter().map(|(_, call)| call.clone()).collect()
    }

    pub(crate) fn invalidations(&self) -> usize {
        self.all().iter().filter(|call| **call == Call::Invalidate).count()
    }

    pub(crate) fn first_invalidation(&self) -> Option<Instant> {
        let calls = self.calls.lock().unwrap();
        calls.iter().find(|(_, call)| *call == Call::Invalidate).map(|(at, _)| *at)
    }

    /// The last setting of the endpoint.
    pub(crate) fn endpoint(&self, id: &str) -> Option<bool> {
        let told = |call: &Call| match call {
            Call::Endpoint(told, fast) if told == id => Some(*fast),
            _ => None,
        };
        self.all().iter().rev().find_map(told)
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl FlowCache for Recorder {
    fn epoch(&self) -> Result<u32, CacheError> {
        Ok(1)
    }
    fn invalidate(&self) -> Result<u32, CacheError> {
        self.note(Call::Invalidate);
        if let Some(probe) = self.probe.lock().unwrap().as_ref() {
            probe(self.invalidations());
        }
        Ok(1)
    }
    fn change_scopes(&self, change: &ScopeChange) -> Result<(), CacheError> {
        self.note(Call::Scopes(change.clone()));
        Ok(())
    }
    fn open_scopes(&self) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_gate(&self, gate: Gate) -> Result<(), CacheError> {
        self.note(Call::Gate(gate));
        Ok(())
    }
    fn gate(&self) -> Result<Gate, CacheError> {
        Ok(self.left)
    }
    fn hold_left(&self) -> Result<Duration, CacheError> {
        Ok(Duration::ZERO)
    }
    fn heartbeat(&self) -> Result<(), CacheError> {
        *self.beats.lock().unwrap() += 1;
        Ok(())
    }
    fn set_underlay(&self, underlay: Option<Underlay>) -> Result<(), CacheError> {
        self.note(Call::Underlay(underlay));
        Ok(())
    }
    fn set_gateway(&self, gateway: Option<GatewayEnd>) -> Result<(), CacheError> {
        self.note(Call::Gateway(gateway));
        Ok(())
    }
    fn set_physical(&self, _: &BTreeMap<u32, PhysicalPort>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_remotes(&self, remotes: &BTreeSet<Ipv4Addr>) -> Result<(), CacheError> {
        self.note(Call::Remotes(remotes.clone()));
        Ok(())
    }
    fn set_timing(&self, _: Timing) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_endpoint_fast(&self, id: &str, fast: bool) -> Result<(), CacheError> {
        self.note(Call::Endpoint(id.to_owned(), fast));
        Ok(())
    }
    fn set_endpoint_diverged(&self, _: &str, _: u32) -> Result<(), CacheError> {
        Ok(())
    }
    fn each_flow(&self, visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>) -> Result<(), CacheError> {
        let _ = self.flows(usize::MAX)?.iter().try_for_each(visit);
        Ok(())
    }
    fn flows(&self, _: usize) -> Result<Vec<Flow>, CacheError> {
        Ok(Vec::new())
    }
    fn pressure(&self) -> Result<Vec<Pressure>, CacheError> {
        Ok(Vec::new())
    }
    fn sweep(&self) -> Result<Swept, CacheError> {
        Ok(Swept::default())
    }
    fn end_connections(&self, _: &node_agent::flow_cache::Connections) -> Result<u64, CacheError> {
        Ok(0)
    }
    fn divergences(&self) -> Result<Vec<Divergence>, CacheError> {
        Ok(Vec::new())
    }
    fn tunnels(&self) -> Result<Vec<Tunnel>, CacheError> {
        Ok(Vec::new())
    }
    fn endpoints(&self) -> Result<Vec<EndpointAmounts>, CacheError> {
        Ok(Vec::new())
    }
    fn interfaces(&self) -> Result<Vec<InterfaceAmounts>, CacheError> {
        Ok(Vec::new())
    }
    fn reasons(&self) -> Result<Vec<(Reason, u64)>, CacheError> {
        Ok(Vec::new())
    }
}

pub(crate) struct Bed {
    pub(crate) ovs: OvsNode,
    pub(crate) node: Node,
    pub(crate) cache: Arc<Recorder>,
}

impl Bed {
    /// A node whose br-int has one flow; returns when the manager is quiet.
    pub(crate) async fn open() -> Self {
        let ovs = OvsNode::start();
        ovs.ofctl("add-flow", "table=0,priority=0,actions=drop");
        let mut bed = Self::start(ovs, FaultInjection::default()).await;
        bed.rest().await;
        bed
    }

    pub(crate) async fn start(ovs: OvsNode, faults: FaultInjection) -> Self {
        Self::start_with(ovs, faults, Recorder::default()).await
    }

    pub(crate) async fn start_with(ovs: OvsNode, faults: FaultInjection, cache: Recorder) -> Self {
        let cache = Arc::new(cache);
        let mut datapath = Datapath::ovs_only(true, false, "a test");
        datapath.flow_cache = Some(Arc::clone(&cache) as Arc<dyn FlowCache>);
        let flow_cache = datapath.manager(&ovs.path("state")).unwrap();
        let node = Node {
            netlink: Netlink::open().unwrap(),
            reaper: Netlink::open().unwrap(),
            ovs: Ovs::connect(&ovs.db(), SOON).await.unwrap(),
            pods: Pods::default(),
            datapath: Arc::new(datapath),
            mtu: 1400,
            cni_conf_dir: Default::default(),
            default_network: true,
            calls: Default::default(),
            journal: Default::default(),
            metrics: Metrics::default(),
            health: Health::default(),
            peers: Default::default(),
            service_names: Default::default(),
            flow_cache,
            tasks: supervision::Tasks::new().0,
        };
        let (ovs_db, uplink) = (ovs.db(), "eth0".to_owned());
        node.start_flow_cache(Settings { ovs_db, uplink, pod_mtu: 1400, timing: Default::default(), faults });
        Self { ovs, node, cache }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        self.node.flow_cache.status()
    }

    pub(crate) async fn until(&self, what: &str, good: impl Fn(&CacheStatus) -> bool) {
        self.until_within(SOON, what, good).await;
    }

    pub(crate) async fn until_within(
        &self,
        limit: Duration,
        what: &str,
        good: impl Fn(&CacheStatus) -> bool,
    ) {
        let start = Instant::now();
        while !good(&self.status()) {
            assert!(start.elapsed() < limit, "{what} did not come about: {:#?}", self.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the gate is open and nothing happens any more.
    pub(crate) async fn rest(&mut self) {
        self.until("an open gate", |s| {
            s.cache.monitor == MonitorHealth::Synced && s.cache.gate.learn && s.cache.gate.tcp
        })
        .await;
        let mut invalidations = self.cache.invalidations();
        loop {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            if std::mem::replace(&mut invalidations, self.cache.invalidations()) == invalidations {
                return self.cache.forget();
            }
        }
    }
}
