//! [`Manager`]: feeds events to the state machine, applies its steps to the flow cache, and keeps the node's status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::gateway_monitor::GatewayMonitor;
use super::local_ports::{LocalPorts, host_veth};
use super::metrics::CacheMetrics;
use super::sources::revalidation::Requests;
use crate::flow_cache::eligibility::decide::View;
use crate::flow_cache::eligibility::flow_actions::FlowExclusions;
use crate::flow_cache::invalidation::{Cause, Engine, Input, Step, Times, Tracking, Watched};
use crate::flow_cache::path_file::{Store, StoreError};
use crate::flow_cache::{FlowCache, Gate, GatewayEnd, Services, Timing, Underlay};
use api::admin::{
    Cache, CacheStatus, EndpointStatus, GateStatus, MonitorHealth, NodePath, PathStatus, UnderlayStatus,
};

/// Reason shown before the first evaluation.
pub(super) const STARTING: &str = "the agent is starting";

/// Manager of the node's flow cache. Clones share state.
#[derive(Debug, Clone)]
pub struct Manager {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) cache: Option<Arc<dyn FlowCache>>,
    /// Inputs of the eligibility rules; set by [`Manager::start`].
    pub(super) view: OnceLock<View>,
    /// OVS uses its userspace datapath (`netdev`).
    pub(super) netdev: bool,
    /// Why the node has no flow cache; empty if it has one.
    without: String,
    store: Store,
    services: Services,
    pub(super) metrics: CacheMetrics,
    inner: Mutex<Inner>,
    /// Path last written for each endpoint; true: fast path. Has its own lock, as writes may take long and must not delay
    /// invalidation.
    last_sent: Mutex<BTreeMap<String, bool>>,
    /// Ports of br-int; `None` before they are known. Has its own lock, which is held for a lookup or an assignment.
    pub(super) ports: Mutex<Option<LocalPorts>>,
    /// Held while `ports` are read anew, so that no older reading replaces a newer one.
    pub(super) ports_turn: Mutex<()>,
    /// Remote tunnel endpoints last written to the cache; `None` when unknown.
    pub(super) remotes: Mutex<Option<BTreeSet<Ipv4Addr>>>,
    /// Why ends of tracked connections are not heard of; empty when they are.
    pub(super) tracking_unheard: Mutex<String>,
    /// Why no change of br-int's flows can be told to concern only some entries; empty when it can.
    pub(super) unscoped_reason: Mutex<String>,
    /// The state machine's due time has changed.
    pub(super) due: Notify,
    /// Waits for OVS's revalidators that are to begin.
    pub(super) revalidate: Requests,
    /// ovs-vswitchd may have restarted.
    pub(super) ovs_is_new: Notify,
    /// An input of the eligibility rules has changed.
    pub(super) decide: Notify,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    /// Mode bits last written; `None` before the first write and after a failed one.
    gate: Option<Gate>,
    /// Start of the part of the grace period that is not in the metrics yet.
    hold: Option<Instant>,
    wanted: NodePath,
    decided: Decided,
    /// Number of times ovs-vswitchd was lost.
    lives: u64,
    /// Exclusions because of the bridges' flows, and their version.
    exclusions: (Exclusions, u64),
    gateway_monitor: GatewayMonitor,
    /// The end of the gateway's grace period was told.
    gateway_hold_over: bool,
    /// [`Decided::gateway_end`] as last written to the cache; `None`: not written yet.
    gateway_sent: Option<Option<GatewayEnd>>,
    timing: Timing,
    divergences: u64,
}

/// What the flows of the two bridges exclude from the fast path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Exclusions {
    pub(super) integration: Arc<FlowExclusions>,
    pub(super) gateway: Arc<FlowExclusions>,
}

/// Result of the last evaluation of the eligibility rules.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    pub(super) node: PathStatus,
    pub(super) tunnel: PathStatus,
    /// Path of the node's own traffic and of that with the outside.
    pub(super) gateway: PathStatus,
    pub(super) gateway_end: Option<GatewayEnd>,
    pub(super) underlay: Option<Underlay>,
    pub(super) endpoints: Vec<EndpointStatus>,
}

impl Manager {
    /// Creates the manager of `cache`. `netdev`: OVS uses its userspace datapath. `without`: why there is no cache, if `cache`
    /// is `None`. Has no effect before [`Manager::start`].
    ///
    /// # Errors
    /// The requested paths, persisted under `state_dir`, cannot be read.
    pub fn new(
        cache: Option<Arc<dyn FlowCache>>,
        netdev: bool,
        without: &str,
        state_dir: &std::path::Path,
    ) -> Result<Self, StoreError> {
        let store = Store::new(state_dir);
        let wanted = store.load()?;
        let services = Services::new(cache.clone(), state_dir)?;
        Ok(Self::with(cache, netdev, without, store, wanted, services))
    }

    /// Creates a manager without a flow cache, for `cleanup`.
    pub fn none(netdev: bool) -> Self {
        let store = Store::new(std::path::Path::new("/nonexistent"));
        Self::with(None, netdev, "", store, NodePath::Ovs, Services::none())
    }

    fn with(
        cache: Option<Arc<dyn FlowCache>>,
        netdev: bool,
        without: &str,
        store: Store,
        wanted: NodePath,
        services: Services,
    ) -> Self {
        let starting = PathStatus::ovs(STARTING);
        let inner = Inner {
            engine: Engine::new(Times::default(), Tracking::Unknown),
            gate: None,
            hold: None,
            wanted,
            decided: Decided {
                node: starting.clone(),
                tunnel: starting.clone(),
                gateway: starting,
                gateway_end: None,
                underlay: None,
                endpoints: Vec::new(),
            },
            lives: 0,
            exclusions: Default::default(),
            gateway_monitor: GatewayMonitor::starting(),
            gateway_hold_over: false,
            gateway_sent: None,
            timing: Timing::default(),
            divergences: 0,
        };
        let shared = Shared {
            cache,
            view: OnceLock::new(),
            netdev,
            without: without.to_owned(),
            store,
            services,
            metrics: CacheMetrics::default(),
            inner: Mutex::new(inner),
            last_sent: Mutex::default(),
            ports: Mutex::default(),
            ports_turn: Mutex::default(),
            remotes: Mutex::default(),
            tracking_unheard: Mutex::default(),
            unscoped_reason: Mutex::default(),
            due: Notify::new(),
            revalidate: Requests::default(),
            ovs_is_new: Notify::new(),
            decide: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Status of the flow cache and of all endpoints.
    pub fn status(&self) -> CacheStatus {
        let inner = self.shared.inner.lock();
        let Decided { node, tunnel, gateway, underlay, endpoints, .. } = inner.decided.clone();
        let Gate { forward, learn, tcp, hold } = inner.gate.unwrap_or_default();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let there = self.shared.cache.is_some();
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
            epoch: self.shared.cache.as_ref().and_then(|cache| cache.epoch().ok()),
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
                .shared
                .metrics
                .invalidations()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            scoped_changes: self
                .shared
                .metrics
                .scoped_changes()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            unscoped_reason: self.shared.unscoped_reason.lock().clone(),
            divergences: inner.divergences,
            slow_services: self.services().slow().iter().map(ToString::to_string).collect(),
            tracking_unheard: self.shared.tracking_unheard.lock().clone(),
        };
        CacheStatus { node, cache, endpoints }
    }

    /// Services that are kept off the cache, and what it carries for each.
    pub fn services(&self) -> &Services {
        &self.shared.services
    }

    /// Requested path of the node.
    pub fn wanted(&self) -> NodePath {
        self.shared.inner.lock().wanted
    }

    /// Sets the requested path of the node at once, and persists it for later agents. Returns the resulting path. Writes a small
    /// file.
    ///
    /// # Errors
    /// The path cannot be persisted under the state directory; nothing is changed then.
    pub fn set_node_path(&self, path: NodePath) -> Result<PathStatus, StoreError> {
        self.shared.store.save(path)?;
        tracing::info!(path = path.name(), "path of the node requested");
        self.shared.inner.lock().wanted = path;
        if path == NodePath::Ovs {
            // Takes effect before the next evaluation.
            self.shared.take(Input::Enable(false));
        }
        self.shared.decide.notify_one();
        let view = self.shared.view.get();
        Ok(view.map_or_else(|| self.status().node, |view| view.node(&self.shared)))
    }

    /// Whether a cached flow is one of these; true if they cannot be read. Blocks: iterates over all entries.
    pub fn has_flow(&self, is_one: impl Fn(&super::Flow) -> bool) -> bool {
        let mut found = false;
        let mut look = |flow: &super::Flow| {
            found = is_one(flow);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let read = self.shared.cache.as_ref().is_none_or(|cache| cache.each_flow(&mut look).is_ok());
        found || !read
    }

    /// Call before and after tracked connections are ended in OVS: entries repeat what the connections did.
    pub fn connections_end(&self) {
        if self.shared.cache.is_some() {
            self.shared.take(Input::Changed(Cause::Connections));
        }
    }

    /// Call after the programs of endpoint `id` were attached or attached again.
    pub fn endpoint_added(&self, id: &str) {
        self.shared.last_sent.lock().remove(id);
        self.shared.decide.notify_one();
    }

    /// Call after the programs of endpoint `id` were detached and before its links are deleted: invalidates its flows, so that no
    /// packet is redirected to these links.
    pub fn endpoint_removed(&self, id: &str) {
        if self.shared.cache.is_none() {
            return;
        }
        self.shared.last_sent.lock().remove(id);
        self.shared.endpoint_gone(id, host_veth(id));
    }
}

impl Shared {
    /// Feeds `input` to the state machine and applies the resulting step. Never blocks for long. Returns true when entries were
    /// invalidated.
    pub(super) fn take(&self, input: Input) -> bool {
        self.take_locked(&mut self.inner.lock(), input)
    }

    /// Adopts the cache of a previous agent. Its entries stay in use until OVS is monitored, and are invalidated then: a restart of
    /// the agent must not send every packet through OVS.
    pub(super) fn adopt(&self) {
        let Some(cache) = &self.cache else { return };
        self.check("open scopes", cache.open_scopes());
        match self.check("read the mode bits", cache.gate()) {
            Some(gate) if gate.forward => {
                // If it cannot be read, the grace period counts as over.
                let left =
                    || self.check("read the rest of the grace period", cache.hold_left()).unwrap_or_default();
                let left = gate.hold.then(left);
                self.inner.lock().gateway_monitor = GatewayMonitor::adopted(Instant::now(), left);
                self.take(Input::Adopt { tcp: gate.tcp, left })
            }
            _ => self.take(Input::Changed(Cause::Resync)),
        };
    }

    /// Number of times ovs-vswitchd was lost; identifies its current process.
    pub(super) fn lives(&self) -> u64 {
        self.inner.lock().lives
    }

    /// Sets the state of connection tracking, unless it came from an ovs-vswitchd that was lost since (`lives`). Returns true when
    /// it was set.
    pub(super) fn take_tracking(&self, lives: u64, tracking: Tracking) -> bool {
        let mut inner = self.inner.lock();
        if inner.lives != lives {
            return false;
        }
        self.take_locked(&mut inner, Input::Tracking(tracking));
        true
    }

    fn take_locked(&self, inner: &mut Inner, input: Input) -> bool {
        let before = inner.engine.due();
        let monitor = inner.engine.monitor_health();
        let now = Instant::now();
        let step = inner.engine.take(now, input);
        self.apply(inner, &step);
        let after = inner.engine.monitor_health();
        if monitor != after {
            let why = inner.engine.unsynced_reason().unwrap_or_default();
            match after {
                MonitorHealth::Synced => tracing::info!("OVS monitor synced"),
                MonitorHealth::GracePeriod => {
                    tracing::warn!(why, "OVS monitor lost; cached flows stay in use for the grace period")
                }
                MonitorHealth::Stale => {
                    tracing::warn!(
                        why,
                        "OVS monitor lost and grace period over; every packet goes through OVS"
                    )
                }
            }
        }
        if let Some(since) = inner.hold.take() {
            self.metrics.held.inc_by(now.saturating_duration_since(since).as_secs_f64());
        }
        inner.hold = (after == MonitorHealth::GracePeriod).then_some(now);
        self.metrics.state(inner.gate.unwrap_or_default(), after, inner.engine.tracking());
        if inner.engine.due() != before {
            self.due.notify_one();
        }
        let changed = step.invalidate.is_some() || !step.scopes.buckets.is_empty();
        self.revalidate.add(step.revalidate);
        changed
    }

    /// Applies a step: clears mode bits, invalidates, then sets mode bits, so that nothing is learned or used in between.
    fn apply(&self, inner: &mut Inner, step: &Step) {
        let Some(cache) = &self.cache else { return };
        let new = step.gate;
        let narrow = inner.gate.map_or(Gate::default(), |old| Gate {
            forward: old.forward && new.forward,
            learn: old.learn && new.learn,
            tcp: old.tcp && new.tcp,
            hold: old.hold || new.hold,
        });
        let set = |inner: &mut Inner, gate: Gate| {
            if inner.gate != Some(gate) {
                inner.gate = self.check("set the mode bits", cache.set_gate(gate)).map(|()| gate);
            }
        };
        if step.invalidate.is_some() {
            set(inner, narrow);
        }
        if let Some(source) = step.invalidate {
            self.metrics.invalidated(source);
            if self.check("invalidate all entries", cache.invalidate()).is_none() {
                // Entries that cannot be invalidated must not be used.
                set(inner, Gate::default());
                return;
            }
        }
        if !step.scopes.buckets.is_empty() {
            self.metrics.scopes.inc_by(u64::try_from(step.scopes.buckets.len()).unwrap_or(u64::MAX));
            if self.check("change scopes", cache.change_scopes(&step.scopes)).is_none() {
                // Entries that cannot be ended must not be used, and nothing is learned in scopes that could not be closed.
                self.check("invalidate all entries", cache.invalidate());
                set(inner, Gate::default());
                return;
            }
        }
        set(inner, new);
    }

    /// Counts and logs an error; `what` is the failed operation.
    pub(super) fn check<T, E: std::fmt::Display>(&self, what: &str, done: Result<T, E>) -> Option<T> {
        done.map_err(|error| {
            self.metrics.failures.inc();
            tracing::error!(%error, "flow cache: cannot {what}");
        })
        .ok()
    }

    /// Sets the path of endpoint `id`, unless it is set already. Returns true when the endpoint left the fast path.
    pub(super) fn set_endpoint(&self, id: &str, fast: bool) -> bool {
        let Some(cache) = &self.cache else { return false };
        let mut last_sent = self.last_sent.lock();
        let was = last_sent.get(id).copied();
        if was == Some(fast) {
            return false;
        }
        let done = cache.set_endpoint_fast(id, fast);
        if self.check("set the path of an endpoint", done).is_some() {
            last_sent.insert(id.to_owned(), fast);
        }
        was != Some(false) && !fast
    }

    /// Drops state of endpoints that no longer exist.
    pub(super) fn retain_endpoints(&self, exists: impl Fn(&str) -> bool) {
        self.last_sent.lock().retain(|id, _| exists(id));
    }

    /// Time of the next [`Shared::tick`].
    pub(super) fn next_due(&self) -> Option<Instant> {
        let inner = self.inner.lock();
        let gateway = inner.gateway_monitor.hold_ends().filter(|_| !inner.gateway_hold_over);
        [inner.engine.due(), gateway].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(super) fn tick(&self) {
        self.take(Input::Tick);
        let mut inner = self.inner.lock();
        let over = inner.gateway_monitor.hold_ends().is_some_and(|end| end <= Instant::now());
        if over && !std::mem::replace(&mut inner.gateway_hold_over, true) {
            self.decide.notify_one();
        }
    }

    /// Known state of OVS's connection tracking.
    pub(super) fn tracking(&self) -> Tracking {
        self.inner.lock().engine.tracking().clone()
    }

    /// Call when ovs-vswitchd is lost; a new one starts with its TCP sequence check on.
    pub(super) fn ovs_lost(&self, why: String) {
        let mut inner = self.inner.lock();
        inner.lives += 1;
        self.take_locked(&mut inner, Input::MonitorLost(why));
        if self.netdev {
            self.take_locked(&mut inner, Input::Tracking(Tracking::Unknown));
        }
    }

    /// True while br-int has had no flows since the monitor connected.
    pub(super) fn waits_for_flows(&self) -> bool {
        self.inner.lock().engine.waits_for_flows()
    }

    /// Sets the exclusions because of the flows of `bridge`; learning stops until [`Shared::exclusions_applied`].
    pub(super) fn set_exclusions(&self, bridge: Watched, exclusions: FlowExclusions) {
        let mut inner = self.inner.lock();
        let (all, version) = &mut inner.exclusions;
        let of_bridge = match bridge {
            Watched::Integration => &mut all.integration,
            Watched::Gateway => &mut all.gateway,
        };
        if **of_bridge != exclusions {
            *of_bridge = Arc::new(exclusions);
            *version += 1;
            self.take_locked(&mut inner, Input::Deciding(true));
            self.decide.notify_one();
        }
    }

    /// Current exclusions and their version.
    pub(super) fn exclusions(&self) -> (Exclusions, u64) {
        self.inner.lock().exclusions.clone()
    }

    /// Call when the flow monitor of the gateway bridge is connected and synced, or is not, with the reason.
    pub(super) fn gateway_monitor(&self, state: Result<(), String>) {
        let connected = state.is_ok();
        let mut inner = self.inner.lock();
        inner.gateway_hold_over &= !connected;
        inner.gateway_monitor = inner.gateway_monitor.next(Instant::now(), state);
        self.take_locked(&mut inner, Input::GatewayMonitor(connected));
        match connected {
            true => self.decide.notify_one(),
            // The path is evaluated when the grace period is over: OVS may only be starting again.
            false => self.due.notify_one(),
        }
    }

    /// Why the gateway bridge is not monitored; `None` when it is.
    pub(super) fn gateway_unsynced(&self) -> Option<String> {
        self.inner.lock().gateway_monitor.unsynced_reason(Instant::now())
    }

    /// Path of the gateway bridge as decided last, while its monitor is lost and the grace period lasts.
    pub(super) fn gateway_held(&self) -> Option<(PathStatus, Option<GatewayEnd>)> {
        let inner = self.inner.lock();
        inner.gateway_monitor.hold_ends().filter(|end| Instant::now() < *end)?;
        Some((inner.decided.gateway.clone(), inner.decided.gateway_end))
    }

    /// Writes what the fast path needs for traffic of the gateway bridge, unless it is written already. Returns true when it was
    /// changed.
    pub(super) fn set_gateway(&self, end: Option<GatewayEnd>) -> bool {
        let Some(cache) = &self.cache else { return false };
        let before = self.inner.lock().gateway_sent;
        // What the agent before wrote stands until the bridge is monitored, or the grace period is over.
        let adopted = before.is_none() && self.gateway_held().is_some();
        if adopted || before == Some(end) {
            return false;
        }
        let done = self.check("set the path of the gateway bridge", cache.set_gateway(end));
        self.inner.lock().gateway_sent = done.map(|()| end);
        before.is_some()
    }

    /// Call after the exclusions of this version were applied to all endpoints; learning resumes if they are current.
    pub(super) fn exclusions_applied(&self, version: u64) {
        let mut inner = self.inner.lock();
        if inner.exclusions.1 == version {
            self.take_locked(&mut inner, Input::Deciding(false));
        }
    }

    pub(super) fn services(&self) -> &Services {
        &self.services
    }

    pub(super) fn wanted(&self) -> NodePath {
        self.inner.lock().wanted
    }

    pub(super) fn without(&self) -> &str {
        &self.without
    }

    /// Replaces the result of the evaluation; returns the previous one.
    pub(super) fn decided(&self, decided: Decided) -> Decided {
        std::mem::replace(&mut self.inner.lock().decided, decided)
    }

    pub(super) fn diverged(&self, count: u64) {
        let mut inner = self.inner.lock();
        inner.divergences += count;
        self.metrics.divergences.inc_by(count);
        self.take_locked(&mut inner, Input::Diverged);
    }

    pub(super) fn timing(&self) -> Timing {
        self.inner.lock().timing
    }

    pub(super) fn set_timing(&self, timing: Timing) {
        self.inner.lock().timing = timing;
    }
}
