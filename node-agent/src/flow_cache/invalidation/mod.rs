//! State machine of the flow cache: when entries are invalidated, used, learned and refreshed. No I/O; time comes from the
//! caller.
//!
//! It combines two concerns. *Bursts* of changes: the first change invalidates all entries and stops learning; at the end of
//! the debounce window after the last change all entries are invalidated again and learning resumes. OVS revalidates its own
//! datapath flows only some time after its tables changed, and its verdicts in between must not be cached. *Monitor health*:
//! while a source of change events is lost, entries are first used without refresh for a grace period (a restart of OVS must
//! not interrupt traffic), then the cache is closed.
//!
//! A change that concerns some scopes only does the same to these scopes alone: [`scoped`].

pub(in crate::flow_cache) mod bridge_monitor;
mod cause;
mod monitor_error;
mod scoped;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::flow_cache::cache::{Gate, HOLD, ScopeChange};
use api::admin::MonitorHealth;
pub use cause::{Cause, Watched};
pub use monitor_error::MonitorError;
pub use scoped::Concerned;
use scoped::Scoped;

/// Timing of the state machine.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Debounce window: a burst ends when no change has arrived for this long.
    pub quiet: Duration,
    /// Longest burst; the next change after it starts a new one.
    pub longest: Duration,
    /// Grace period: how long entries are used while OVS is not monitored.
    pub hold: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(20), longest: Duration::from_millis(200), hold: HOLD }
    }
}

/// How long an endpoint with a divergence takes the slow path.
const DIVERGED: Duration = Duration::from_secs(5);

/// Whether OVS's connection tracking accepts TCP packets of a connection of which it has not seen all packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tracking {
    /// Accepts them: the TCP sequence check is known to be off.
    Tolerant,
    /// Unknown since ovs-vswitchd was started.
    Unknown,
    /// Rejects them, with the reason why the check is on.
    Strict(String),
}

/// Round of OVS's revalidators that has ended since the last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// May have started before the change.
    First,
    /// Started after the change: no datapath flow is older than the change.
    Second,
}

/// What is known of a flow monitor.
#[derive(Debug, Clone, Copy, Default)]
struct Monitor {
    paused: bool,
    reading: bool,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Something changed on which OVS's verdicts depend.
    Changed(Cause),
    /// Something changed on which only OVS's verdicts of these scopes depend: buckets of [`ebpf::layout::scope`].
    Scopes(Cause, Vec<u32>),
    /// OVS gave another answer than an entry without a change: whatever the cause, it is not to last.
    Diverged,
    /// The flow monitor was paused by OVS because of congestion (`true`), or resumed (`false`).
    Paused(Watched, bool),
    /// Flow updates are being parsed (`true`), or all have been (`false`). In between, the exclusions are unknown.
    Reading(Watched, bool),
    /// Changed exclusions are being applied to endpoints (`true`), or have been (`false`).
    Deciding(bool),
    /// OVS has revalidated all of its datapath flows since the request, which was for this.
    Revalidated(Round, Concerned),
    /// The flow monitor of br-int is connected.
    Monitor {
        /// Number of flows in all tables.
        flows: usize,
    },
    /// The flow monitor of br-int was lost, with the reason.
    MonitorLost(MonitorError),
    /// The flow monitor of the gateway bridge is connected (`true`), or was lost.
    GatewayMonitor(bool),
    /// The flow monitor of a bridge that leads to a physical network is connected (`true`), or was lost, by its number.
    PhysicalMonitor(u32, bool),
    /// Whether the Open_vSwitch database is connected and synced.
    Database(bool),
    /// State of OVS's connection tracking.
    Tracking(Tracking),
    /// Whether the node is eligible for the fast path.
    Enable(bool),
    /// A previous agent left the cache in use: its entries are used for a grace period, until OVS is monitored.
    Adopt {
        /// TCP was allowed.
        tcp: bool,
        /// Remaining grace period of the previous agent; `None`: it was not in one.
        left: Option<Duration>,
    },
    /// Time has passed.
    Tick,
}

/// Actions for the caller, in this order: clear mode bits, invalidate, change scopes, set mode bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Invalidate all entries, for this cause.
    pub invalidate: Option<Cause>,
    /// Change these scopes; none if it has no buckets.
    pub scopes: ScopeChange,
    /// New mode bits.
    pub gate: Gate,
    /// Wait for OVS's revalidators, for this.
    pub revalidate: Concerned,
}

#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
    /// True when flows of br-int changed.
    flows: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Hold { since: Instant, until: Instant },
    Closed,
}

/// The state machine. Starts closed.
#[derive(Debug)]
pub struct Engine {
    times: Times,
    enabled: bool,
    burst: Option<Burst>,
    scoped: Scoped,
    /// When all entries are invalidated because of a divergence.
    diverged: Option<Instant>,
    integration: Monitor,
    gateway: Monitor,
    /// Monitors that are connected, by the numbers of their bridges.
    physical: BTreeMap<u32, Monitor>,
    deciding: bool,
    monitor: Result<(), MonitorError>,
    /// br-int had no flows when the monitor connected: ovs-vswitchd restarted and its flows are not installed yet.
    empty: bool,
    database: bool,
    tracking: Tracking,
    /// [`Gate::tcp`] when the monitor was last synced.
    tcp: bool,
    state: State,
}

impl Engine {
    /// Creates the state machine with no source connected and no mode bit set.
    pub fn new(times: Times, tracking: Tracking) -> Self {
        Self {
            times,
            enabled: false,
            burst: None,
            scoped: Scoped::default(),
            diverged: None,
            integration: Monitor::default(),
            gateway: Monitor::default(),
            physical: BTreeMap::new(),
            deciding: false,
            monitor: Err(MonitorError::NotYet),
            empty: false,
            database: false,
            tracking,
            tcp: false,
            state: State::Closed,
        }
    }

    /// Processes an event that happened at `now`.
    pub fn take(&mut self, now: Instant, input: Input) -> Step {
        let (mut invalidate, mut revalidate, mut buckets) = (None, Concerned::default(), Vec::new());
        match input {
            Input::Changed(cause) => invalidate = self.change(now, cause, &mut revalidate),
            // What changes while OVS starts is told all at once in the end.
            Input::Scopes(cause, _) if self.is_away() => {
                invalidate = self.change(now, cause, &mut revalidate);
            }
            Input::Scopes(_, changed) => {
                buckets = self.scoped.change(now, &changed);
                revalidate.buckets.extend(buckets.iter().map(|(bucket, _)| *bucket));
            }
            Input::Diverged => self.diverged = self.diverged.or(Some(now + DIVERGED)),
            Input::Paused(bridge, paused) => {
                if let Some(monitor) = self.monitor_of(bridge) {
                    monitor.paused = paused;
                }
                invalidate = self.change(now, bridge.cause(), &mut revalidate);
            }
            Input::Reading(bridge, reading) => {
                if let Some(monitor) = self.monitor_of(bridge) {
                    monitor.reading = reading;
                }
            }
            Input::GatewayMonitor(connected) => {
                self.gateway = Monitor::default();
                // When it is lost nothing is known to have changed, and OVS may only be starting again.
                if connected {
                    invalidate = self.change(now, Cause::GatewayFlows, &mut revalidate);
                }
            }
            Input::PhysicalMonitor(number, connected) => {
                self.physical.remove(&number);
                if connected {
                    self.physical.insert(number, Monitor::default());
                    invalidate = self.change(now, Cause::PhysicalFlows, &mut revalidate);
                }
            }
            Input::Deciding(deciding) => self.deciding = deciding,
            // During a burst nothing is learned, and its end invalidates all entries anyway.
            Input::Revalidated(round, concerned) => {
                let told = concerned.everything && (round == Round::Second || self.burst.is_none());
                invalidate = told.then_some(Cause::Revalidated);
                buckets = self.scoped.revalidated(round, &concerned.buckets);
            }
            Input::Monitor { flows } => {
                self.monitor = Ok(());
                self.empty = flows == 0;
                self.integration.paused = false;
                // Earlier changes belong to another session.
                self.burst = None;
            }
            Input::MonitorLost(why) => {
                self.monitor = Err(why);
                self.integration = Monitor::default();
            }
            Input::Database(there) => self.database = there,
            Input::Tracking(tracking) => self.tracking = tracking,
            Input::Enable(enabled) => {
                if self.enabled != enabled {
                    self.enabled = enabled;
                    invalidate = Some(Cause::Path);
                }
            }
            Input::Adopt { tcp, left } => {
                self.enabled = true;
                self.tcp = tcp;
                self.state = State::Hold { since: now, until: now + left.unwrap_or(self.times.hold) };
            }
            Input::Tick => {}
        }
        if let Some(burst) = self.burst.filter(|burst| now >= self.end(*burst)) {
            self.burst = None;
            self.empty &= !burst.flows;
            invalidate = Some(Cause::Quiet);
            revalidate.everything |= burst.last > burst.first;
        }
        for (bucket, again) in self.scoped.take_ended(now, self.times) {
            buckets.push((bucket, false));
            revalidate.buckets.extend(again.then_some(bucket));
        }
        if self.diverged.is_some_and(|due| now >= due) {
            self.diverged = None;
            invalidate = invalidate.or(Some(Cause::Diverged));
        }
        self.update_state(now, &mut invalidate, &mut revalidate);
        if self.state == State::Open {
            self.tcp = self.tracking == Tracking::Tolerant;
        }
        let scopes = ScopeChange { buckets, closing: self.scoped.is_closing() };
        Step { invalidate, scopes, gate: self.gate(), revalidate }
    }

    /// When to call [`Engine::take`] with [`Input::Tick`] if no other event arrives.
    pub fn due(&self) -> Option<Instant> {
        let burst = self.burst.map(|burst| self.end(burst));
        let hold = match self.state {
            State::Hold { until, .. } => Some(until),
            _ => None,
        };
        burst.into_iter().chain(hold).chain(self.scoped.due(self.times)).chain(self.diverged).min()
    }

    /// Health of the OVS monitor.
    pub fn monitor_health(&self) -> MonitorHealth {
        match self.state {
            State::Open => MonitorHealth::Synced,
            State::Hold { .. } => MonitorHealth::GracePeriod,
            State::Closed => MonitorHealth::Stale,
        }
    }

    /// Start of the current grace period.
    pub fn held_since(&self) -> Option<Instant> {
        match self.state {
            State::Hold { since, .. } => Some(since),
            _ => None,
        }
    }

    /// State of OVS's connection tracking.
    pub fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// True while br-int has had no flows since the monitor connected.
    pub fn waits_for_flows(&self) -> bool {
        self.empty
    }

    /// Which source is not synced; `None` when all are.
    pub fn unsynced_reason(&self) -> Option<String> {
        if let Err(why) = &self.monitor {
            return Some(format!("flow monitor of br-int not connected: {why}"));
        }
        if !self.database {
            return Some("no connection to the Open_vSwitch database".to_owned());
        }
        if self.empty {
            return Some("br-int has no flows yet; waiting for ovn-controller".to_owned());
        }
        if self.tracking == Tracking::Unknown {
            return Some(
                "not known yet whether the TCP sequence check of OVS's connection tracking is off".to_owned(),
            );
        }
        None
    }

    /// Mode bits.
    pub fn gate(&self) -> Gate {
        if !self.enabled {
            return Gate::default();
        }
        match self.state {
            State::Closed => Gate::default(),
            State::Hold { .. } => {
                let tcp = match self.tracking {
                    Tracking::Tolerant | Tracking::Unknown => self.tcp,
                    Tracking::Strict(_) => false,
                };
                Gate { forward: true, learn: false, tcp, hold: true }
            }
            State::Open => Gate {
                forward: true,
                learn: self.burst.is_none() && !self.is_behind() && !self.deciding,
                tcp: self.tracking == Tracking::Tolerant,
                hold: false,
            },
        }
    }

    /// `None`: of a bridge that is no longer monitored, whose thread has not ended yet. Nobody would tell its end.
    fn monitor_of(&mut self, bridge: Watched) -> Option<&mut Monitor> {
        match bridge {
            Watched::Integration => Some(&mut self.integration),
            Watched::Gateway => Some(&mut self.gateway),
            Watched::Physical(number) => self.physical.get_mut(&number),
        }
    }

    /// Whether flows may have changed that no update has told yet.
    fn is_behind(&self) -> bool {
        let all = [&self.integration, &self.gateway].into_iter().chain(self.physical.values());
        all.into_iter().any(|monitor| monitor.paused || monitor.reading)
    }

    /// Whether OVS is away, or is only starting.
    fn is_away(&self) -> bool {
        self.monitor.is_err() || self.empty
    }

    fn end(&self, burst: Burst) -> Instant {
        (burst.last + self.times.quiet).min(burst.first + self.times.longest)
    }

    /// Processes a change. Requests a wait for the revalidators, which OVS has just started; the end of a burst of several changes
    /// requests another.
    fn change(&mut self, now: Instant, cause: Cause, revalidate: &mut Concerned) -> Option<Cause> {
        let away = self.is_away();
        let follows_from_start = matches!(
            cause,
            Cause::Ports | Cause::Chassis | Cause::Neighbours | Cause::GatewayFlows | Cause::PhysicalFlows
        );
        if away && follows_from_start {
            // Side effects of the end and start of OVS, after which all entries are invalidated anyway. Without OVS they do not
            // change verdicts, and an invalidation would defeat the grace period.
            return None;
        }
        let flows = cause == Cause::Flows;
        if let Some(burst) = &mut self.burst {
            burst.last = now;
            burst.flows |= flows;
            return None;
        }
        self.burst = Some(Burst { first: now, last: now, flows });
        revalidate.everything = true;
        // Flows installed after a restart of ovs-vswitchd do not invalidate entries; when all are there, the resync does.
        (!(self.empty && flows)).then_some(cause)
    }

    /// Moves between open, grace period and closed.
    fn update_state(&mut self, now: Instant, invalidate: &mut Option<Cause>, revalidate: &mut Concerned) {
        match (self.unsynced_reason().is_none(), self.state) {
            (true, State::Hold { .. } | State::Closed) => {
                self.state = State::Open;
                self.burst = Some(Burst { first: now, last: now, flows: false });
                *invalidate = Some(Cause::Resync);
                revalidate.everything = true;
            }
            (false, State::Open) => self.state = State::Hold { since: now, until: now + self.times.hold },
            (false, State::Hold { until, .. }) if now >= until => self.state = State::Closed,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
