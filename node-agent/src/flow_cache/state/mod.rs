//! [`Shared`]: feeds events to the state machine, applies its steps to the flow cache, and keeps what is known of the node.

mod exclusions;
mod gateway;
mod physical;
pub(super) mod ports;
mod remotes;
pub(super) mod requests;
mod scope_changes;
mod status;
pub(super) mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::flow_cache::cache::{FlowCache, Gate, GatewayEnd, PhysicalPort, Timing, Underlay};
use crate::flow_cache::invalidation::bridge_monitor::BridgeMonitor;
use crate::flow_cache::invalidation::{Cause, Engine, Input, MonitorError, Step, Times, Tracking};
use crate::flow_cache::metrics::CacheMetrics;
use crate::flow_cache::path_file::{Store, StoreError};
use crate::flow_cache::services::Services;
use api::admin::{EndpointStatus, MonitorHealth, NodePath, PathStatus};
pub(super) use exclusions::Exclusions;
use physical::PhysicalBridges;
use ports::LocalPorts;
use requests::Requests;
use view::View;

/// Reason shown before the first evaluation.
pub(super) const STARTING: &str = "the agent is starting";

/// What the tasks of the flow cache share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) cache: Option<Arc<dyn FlowCache>>,
    /// Inputs of the eligibility rules; set when the tasks are started.
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
    /// Interfaces of physical networks as last written to the cache; `None`: not written yet, or it failed.
    physical_sent: Mutex<Option<BTreeMap<u32, PhysicalPort>>>,
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
    gateway_monitor: BridgeMonitor,
    /// The end of the gateway's grace period was told.
    gateway_hold_over: bool,
    /// [`Decided::gateway_end`] as last written to the cache; `None`: not written yet.
    gateway_sent: Option<Option<GatewayEnd>>,
    physical: PhysicalBridges,
    timing: Timing,
    divergences: u64,
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

impl Shared {
    /// Without any effect yet. `without`: why there is no cache, if `cache` is `None`.
    pub(super) fn new(
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
            gateway_monitor: BridgeMonitor::starting(),
            gateway_hold_over: false,
            gateway_sent: None,
            physical: PhysicalBridges::default(),
            timing: Timing::default(),
            divergences: 0,
        };
        Self {
            cache,
            view: OnceLock::new(),
            netdev,
            without: without.to_owned(),
            store,
            services,
            metrics: CacheMetrics::default(),
            inner: Mutex::new(inner),
            last_sent: Mutex::default(),
            physical_sent: Mutex::default(),
            ports: Mutex::default(),
            ports_turn: Mutex::default(),
            remotes: Mutex::default(),
            tracking_unheard: Mutex::default(),
            unscoped_reason: Mutex::default(),
            due: Notify::new(),
            revalidate: Requests::default(),
            ovs_is_new: Notify::new(),
            decide: Notify::new(),
        }
    }

    /// Persists the requested path of the node, and takes it over.
    ///
    /// # Errors
    /// The path cannot be persisted; nothing is changed then.
    pub(super) fn request(&self, path: NodePath) -> Result<(), StoreError> {
        self.store.save(path)?;
        tracing::info!(path = path.name(), "path of the node requested");
        self.inner.lock().wanted = path;
        if path == NodePath::Ovs {
            // Takes effect before the next evaluation.
            self.take(Input::Enable(false));
        }
        self.decide.notify_one();
        Ok(())
    }

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
                self.inner.lock().gateway_monitor = BridgeMonitor::adopted(Instant::now(), left);
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

    /// The path of endpoint `id` is to be written again.
    pub(super) fn forget_endpoint(&self, id: &str) {
        self.last_sent.lock().remove(id);
    }

    /// Drops state of endpoints that no longer exist.
    pub(super) fn retain_endpoints(&self, exists: impl Fn(&str) -> bool) {
        self.last_sent.lock().retain(|id, _| exists(id));
    }

    /// Time of the next [`Shared::tick`].
    pub(super) fn next_due(&self) -> Option<Instant> {
        let inner = self.inner.lock();
        let gateway = inner.gateway_monitor.hold_ends().filter(|_| !inner.gateway_hold_over);
        [inner.engine.due(), gateway, inner.physical.hold_ends()].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(super) fn tick(&self) {
        self.take(Input::Tick);
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let over = inner.gateway_monitor.hold_ends().is_some_and(|end| end <= now);
        let physical = inner.physical.take_ended(now);
        if over && !std::mem::replace(&mut inner.gateway_hold_over, true) || physical {
            self.decide.notify_one();
        }
    }

    /// Known state of OVS's connection tracking.
    pub(super) fn tracking(&self) -> Tracking {
        self.inner.lock().engine.tracking().clone()
    }

    /// Call when ovs-vswitchd is lost; a new one starts with its TCP sequence check on.
    pub(super) fn ovs_lost(&self, why: MonitorError) {
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
