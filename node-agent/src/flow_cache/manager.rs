//! The handle that everybody holds: takes what happens to the engine, and what the engine says to the flow cache.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::metrics::CacheMetrics;
use crate::flow_cache::eligibility::decide::View;
use crate::flow_cache::eligibility::flow_actions::FlowExclusions;
use crate::flow_cache::invalidation::{Cause, Engine, Input, Step, Times, Tracking};
use crate::flow_cache::path_file::{Store, StoreError};
use crate::flow_cache::{FlowCache, Gate, Timing, Underlay};
use api::admin::{
    Cache, CacheStatus, EndpointStatus, GateStatus, MonitorHealth, NodePath, PathStatus, UnderlayStatus,
};

/// Reason before anything was decided.
pub(super) const STARTING: &str = "the agent is starting";

/// The control of the node's flow cache. Clones share it.
#[derive(Debug, Clone)]
pub struct Manager {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) cache: Option<Arc<dyn FlowCache>>,
    /// What decisions are made from, once it runs.
    pub(super) view: OnceLock<View>,
    /// OVS's userspace datapath.
    pub(super) netdev: bool,
    /// Why the node has no cache.
    without: String,
    store: Store,
    pub(super) metrics: CacheMetrics,
    inner: Mutex<Inner>,
    /// What each endpoint was last_sent last. Not part of the above: telling may take a while, and invalidation must not wait.
    last_sent: Mutex<BTreeMap<String, bool>>,
    /// The tunnels' other ends that the cache was last_sent last; `None` when it is not known what it has.
    pub(super) remotes: Mutex<Option<BTreeSet<Ipv4Addr>>>,
    /// When the engine is due has changed.
    pub(super) due: Notify,
    /// OVS shall tell when it has revalidated.
    pub(super) revalidate: Notify,
    /// ovs-vswitchd may have been started anew.
    pub(super) ovs_is_new: Notify,
    /// Something that paths depend on has changed.
    pub(super) decide: Notify,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    /// The gate as it was set last; `None` before the first time.
    gate: Option<Gate>,
    /// When the part of the hold began that is not counted yet.
    hold: Option<Instant>,
    wanted: NodePath,
    decided: Decided,
    /// How often ovs-vswitchd went away.
    lives: u64,
    /// Whose packets br-int's flows log, sample or shape, and how often that changed.
    exclusions: (Arc<FlowExclusions>, u64),
    timing: Timing,
    divergences: u64,
}

/// What was decided last.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    pub(super) node: PathStatus,
    pub(super) tunnel: PathStatus,
    pub(super) underlay: Option<Underlay>,
    pub(super) endpoints: Vec<EndpointStatus>,
}

impl Manager {
    /// The manager of `cache`, on a node with OVS's userspace datapath if `netdev`. Without a cache, `without` says why there is
    /// none. Nothing is done before [`Manager::start`].
    ///
    /// # Errors
    /// The path that was set for the node, kept under `state_dir`, cannot be read.
    pub fn new(
        cache: Option<Arc<dyn FlowCache>>,
        netdev: bool,
        without: &str,
        state_dir: &std::path::Path,
    ) -> Result<Self, StoreError> {
        let store = Store::new(state_dir);
        let wanted = store.load()?;
        Ok(Self::with(cache, netdev, without, store, wanted))
    }

    /// A manager of nothing, for an agent that only cleans up.
    pub fn none(netdev: bool) -> Self {
        Self::with(None, netdev, "", Store::new(std::path::Path::new("/nonexistent")), NodePath::Ovs)
    }

    fn with(
        cache: Option<Arc<dyn FlowCache>>,
        netdev: bool,
        without: &str,
        store: Store,
        wanted: NodePath,
    ) -> Self {
        let starting = PathStatus::ovs(STARTING);
        let inner = Inner {
            engine: Engine::new(Times::default(), Tracking::Unknown),
            gate: None,
            hold: None,
            wanted,
            decided: Decided {
                node: starting.clone(),
                tunnel: starting,
                underlay: None,
                endpoints: Vec::new(),
            },
            lives: 0,
            exclusions: Default::default(),
            timing: Timing::default(),
            divergences: 0,
        };
        let shared = Shared {
            cache,
            view: OnceLock::new(),
            netdev,
            without: without.to_owned(),
            store,
            metrics: CacheMetrics::default(),
            inner: Mutex::new(inner),
            last_sent: Mutex::default(),
            remotes: Mutex::default(),
            due: Notify::new(),
            revalidate: Notify::new(),
            ovs_is_new: Notify::new(),
            decide: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Everything there is to tell.
    pub fn status(&self) -> CacheStatus {
        let inner = self.shared.inner.lock();
        let Decided { node, tunnel, underlay, endpoints } = inner.decided.clone();
        let Gate { forward, learn, tcp, hold } = inner.gate.unwrap_or_default();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let there = self.shared.cache.is_some();
        let cache = Cache {
            wanted: inner.wanted,
            tcp: match (there, inner.engine.tracking()) {
                (false, _) => node.clone(),
                (_, Tracking::Tolerant) => PathStatus::ebpf("OVS's connection tracking takes flows back"),
                (_, Tracking::Unknown) => {
                    PathStatus::ovs("whether OVS's connection tracking takes flows back is not known yet")
                }
                (_, Tracking::Strict(why)) => PathStatus::ovs(why.clone()),
            },
            tunnel,
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
            divergences: inner.divergences,
        };
        CacheStatus { node, cache, endpoints }
    }

    /// What is wanted of the node.
    pub fn wanted(&self) -> NodePath {
        self.shared.inner.lock().wanted
    }

    /// Sets the node's path, at once and for agents to come. Returns the path it takes. Writes a small file.
    ///
    /// # Errors
    /// It cannot be kept under the state directory; then nothing is changed.
    pub fn set_node_path(&self, path: NodePath) -> Result<PathStatus, StoreError> {
        self.shared.store.save(path)?;
        tracing::info!(path = path.name(), "path of the node is set");
        self.shared.inner.lock().wanted = path;
        if path == NodePath::Ovs {
            // Without waiting for anything else.
            self.shared.take(Input::Enable(false));
        }
        self.shared.decide.notify_one();
        let view = self.shared.view.get();
        Ok(view.map_or_else(|| self.status().node, |view| view.node(&self.shared)))
    }

    /// An endpoint's programs were attached, perhaps anew.
    pub fn endpoint_added(&self, id: &str) {
        self.shared.last_sent.lock().remove(id);
        self.shared.decide.notify_one();
    }

    /// An endpoint's programs are gone and its links are about to go: nothing may be sent into them any more.
    pub fn endpoint_goes(&self, id: &str) {
        if self.shared.cache.is_none() {
            return;
        }
        self.shared.last_sent.lock().remove(id);
        self.shared.take(Input::Changed(Cause::Removal));
    }
}

/// Who decides what the flow cache may do.
pub trait CacheControl: std::fmt::Debug + Send + Sync {
    /// How it is.
    fn status(&self) -> CacheStatus;
    /// Wants another path of the node from now on. Returns the path it takes; the error says why that cannot be wanted.
    fn set_node_path(&self, path: NodePath) -> Result<PathStatus, String>;
    /// Counts a divergence that the audit found.
    fn diverged(&self);
}

impl CacheControl for Manager {
    fn status(&self) -> CacheStatus {
        self.status()
    }

    fn set_node_path(&self, path: NodePath) -> Result<PathStatus, String> {
        self.set_node_path(path).map_err(|error| error.to_string())
    }

    fn diverged(&self) {
        self.shared.diverged(1);
    }
}

impl Shared {
    /// Lets the engine know, and does what it says. Never blocks for long.
    ///
    /// True when everything cached was made invalid.
    pub(super) fn take(&self, input: Input) -> bool {
        self.take_locked(&mut self.inner.lock(), input)
    }

    /// Begins with what an agent before us left. Its flows go on until changes are seen, when all of them become invalid:
    /// a restart of the agent is no reason to send every packet through OVS.
    pub(super) fn adopt(&self) {
        let Some(cache) = &self.cache else { return };
        match self.check("read the gate", cache.gate()) {
            Some(gate) if gate.forward => {
                // What cannot be read is taken to be over.
                let left = || self.check("read the hold", cache.hold_left()).unwrap_or_default();
                self.take(Input::Adopt { tcp: gate.tcp, left: gate.hold.then(left) })
            }
            _ => self.take(Input::Changed(Cause::Resync)),
        };
    }

    /// The number of ovs-vswitchd's lives that we saw end.
    pub(super) fn lives(&self) -> u64 {
        self.inner.lock().lives
    }

    /// Takes an answer about connection tracking, unless the ovs-vswitchd that gave it is gone. True when it was taken.
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
                MonitorHealth::Synced => tracing::info!("changes of OVS are seen"),
                MonitorHealth::GracePeriod => {
                    tracing::warn!(why, "changes of OVS are not seen; cached flows go on for a while")
                }
                MonitorHealth::Stale => {
                    tracing::warn!(why, "changes of OVS are not seen; every packet goes through OVS")
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
        if step.revalidate {
            self.revalidate.notify_one();
        }
        step.invalidate.is_some()
    }

    /// First takes away, then makes invalid, then opens: whatever comes in between must not be learned or used.
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
                inner.gate = self.check("set the gate", cache.set_gate(gate)).map(|()| gate);
            }
        };
        if step.invalidate.is_some() {
            set(inner, narrow);
        }
        if let Some(source) = step.invalidate {
            self.metrics.invalidated(source);
            if self.check("make everything invalid", cache.invalidate()).is_none() {
                // What cannot be made invalid must not be used.
                set(inner, Gate::default());
                return;
            }
        }
        set(inner, new);
    }

    /// Counts and logs a failure.
    pub(super) fn check<T, E: std::fmt::Display>(&self, what: &str, done: Result<T, E>) -> Option<T> {
        done.map_err(|error| {
            self.metrics.failures.inc();
            tracing::error!(%error, "flow cache: {what}");
        })
        .ok()
    }

    /// Puts an endpoint on the fast path or takes it off, if it is not so already. True when it was taken off.
    pub(super) fn set_endpoint(&self, id: &str, fast: bool) -> bool {
        let Some(cache) = &self.cache else { return false };
        let mut last_sent = self.last_sent.lock();
        let was = last_sent.get(id).copied();
        if was == Some(fast) {
            return false;
        }
        let done = cache.set_endpoint_fast(id, fast);
        if self.check("set an endpoint's path", done).is_some() {
            last_sent.insert(id.to_owned(), fast);
        }
        was != Some(false) && !fast
    }

    /// Forgets endpoints that are not there any more.
    pub(super) fn keep(&self, is_there: impl Fn(&str) -> bool) {
        self.last_sent.lock().retain(|id, _| is_there(id));
    }

    /// When the engine wants to be called.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.inner.lock().engine.due()
    }

    /// Whether tracking has still to be looked at.
    pub(super) fn tracking(&self) -> Tracking {
        self.inner.lock().engine.tracking().clone()
    }

    /// ovs-vswitchd is not there, and the next one has its sequence check on again.
    pub(super) fn ovs_is_gone(&self, why: String) {
        let mut inner = self.inner.lock();
        inner.lives += 1;
        self.take_locked(&mut inner, Input::MonitorLost(why));
        if self.netdev {
            self.take_locked(&mut inner, Input::Tracking(Tracking::Unknown));
        }
    }

    /// The table of br-int was empty when the monitor came, and still is.
    pub(super) fn waits_for_flows(&self) -> bool {
        self.inner.lock().engine.waits_for_flows()
    }

    /// Nothing is learned until [`Shared::exclusions_applied`].
    pub(super) fn set_exclusions(&self, exclusions: FlowExclusions) {
        let mut inner = self.inner.lock();
        if *inner.exclusions.0 != exclusions {
            inner.exclusions = (Arc::new(exclusions), inner.exclusions.1 + 1);
            self.take_locked(&mut inner, Input::Deciding(true));
            self.decide.notify_one();
        }
    }

    /// What was set last, and its number.
    pub(super) fn exclusions(&self) -> (Arc<FlowExclusions>, u64) {
        self.inner.lock().exclusions.clone()
    }

    /// Those with this number have been carried out.
    pub(super) fn exclusions_applied(&self, number: u64) {
        let mut inner = self.inner.lock();
        if inner.exclusions.1 == number {
            self.take_locked(&mut inner, Input::Deciding(false));
        }
    }

    pub(super) fn wanted(&self) -> NodePath {
        self.inner.lock().wanted
    }

    pub(super) fn without(&self) -> &str {
        &self.without
    }

    /// Keeps what was decided. Returns what was before.
    pub(super) fn decided(&self, decided: Decided) -> Decided {
        std::mem::replace(&mut self.inner.lock().decided, decided)
    }

    pub(super) fn diverged(&self, count: u64) {
        self.inner.lock().divergences += count;
        self.metrics.divergences.inc_by(count);
    }

    pub(super) fn timing(&self) -> Timing {
        self.inner.lock().timing
    }

    pub(super) fn set_timing(&self, timing: Timing) {
        self.inner.lock().timing = timing;
    }
}
