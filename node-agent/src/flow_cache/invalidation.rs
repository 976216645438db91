//! State machine of the flow cache: when entries are invalidated, used, learned and refreshed. No I/O; time comes from the
//! caller.
//!
//! It combines two concerns. *Bursts* of changes: the first change invalidates all entries and stops learning; at the end of
//! the debounce window after the last change all entries are invalidated again and learning resumes. OVS revalidates its own
//! datapath flows only some time after its tables changed, and its verdicts in between must not be cached. *Monitor health*:
//! while a source of change events is lost, entries are first used without refresh for a grace period (a restart of OVS must
//! not interrupt traffic), then the cache is closed.

use std::time::{Duration, Instant};

pub use crate::flow_cache::cause::{Cause, Watched};
use crate::flow_cache::{Gate, HOLD};
use api::admin::MonitorHealth;

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
    /// The flow monitor was paused by OVS because of congestion (`true`), or resumed (`false`).
    Paused(Watched, bool),
    /// Flow updates are being parsed (`true`), or all have been (`false`). In between, the exclusions are unknown.
    Reading(Watched, bool),
    /// Changed exclusions are being applied to endpoints (`true`), or have been (`false`).
    Deciding(bool),
    /// OVS has revalidated all of its datapath flows since the request.
    Revalidated(Round),
    /// The flow monitor of br-int is connected.
    Monitor {
        /// Number of flows in all tables.
        flows: usize,
    },
    /// The flow monitor of br-int was lost, with the reason.
    MonitorLost(String),
    /// The flow monitor of the gateway bridge is connected, or was lost.
    GatewayMonitor,
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

/// Actions for the caller, in this order: clear mode bits, invalidate, set mode bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Invalidate all entries, for this cause.
    pub invalidate: Option<Cause>,
    /// New mode bits.
    pub gate: Gate,
    /// Wait for OVS's revalidators from the beginning, dropping earlier waits.
    pub revalidate: bool,
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
    integration: Monitor,
    gateway: Monitor,
    deciding: bool,
    monitor: Result<(), String>,
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
            integration: Monitor::default(),
            gateway: Monitor::default(),
            deciding: false,
            monitor: Err("not connected yet".to_owned()),
            empty: false,
            database: false,
            tracking,
            tcp: false,
            state: State::Closed,
        }
    }

    /// Processes an event that happened at `now`.
    pub fn take(&mut self, now: Instant, input: Input) -> Step {
        let (mut invalidate, mut revalidate) = (None, false);
        match input {
            Input::Changed(cause) => invalidate = self.change(now, cause, &mut revalidate),
            Input::Paused(bridge, paused) => {
                self.monitor_of(bridge).paused = paused;
                invalidate = self.change(now, bridge.cause(), &mut revalidate);
            }
            Input::Reading(bridge, reading) => self.monitor_of(bridge).reading = reading,
            Input::GatewayMonitor => {
                self.gateway = Monitor::default();
                invalidate = self.change(now, Cause::GatewayFlows, &mut revalidate);
            }
            Input::Deciding(deciding) => self.deciding = deciding,
            // During a burst nothing is learned, and its end invalidates all entries anyway.
            Input::Revalidated(Round::First) => {
                invalidate = self.burst.is_none().then_some(Cause::Revalidated);
            }
            Input::Revalidated(Round::Second) => invalidate = Some(Cause::Revalidated),
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
            revalidate |= burst.last > burst.first;
        }
        self.update_state(now, &mut invalidate, &mut revalidate);
        if self.state == State::Open {
            self.tcp = self.tracking == Tracking::Tolerant;
        }
        Step { invalidate, gate: self.gate(), revalidate }
    }

    /// When to call [`Engine::take`] with [`Input::Tick`] if no other event arrives.
    pub fn due(&self) -> Option<Instant> {
        let burst = self.burst.map(|burst| self.end(burst));
        let hold = match self.state {
            State::Hold { until, .. } => Some(until),
            _ => None,
        };
        burst.into_iter().chain(hold).min()
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

    fn monitor_of(&mut self, bridge: Watched) -> &mut Monitor {
        match bridge {
            Watched::Integration => &mut self.integration,
            Watched::Gateway => &mut self.gateway,
        }
    }

    /// Whether flows may have changed that no update has told yet.
    fn is_behind(&self) -> bool {
        [self.integration, self.gateway].iter().any(|monitor| monitor.paused || monitor.reading)
    }

    fn end(&self, burst: Burst) -> Instant {
        (burst.last + self.times.quiet).min(burst.first + self.times.longest)
    }

    /// Processes a change. Requests a wait for the revalidators, which OVS has just started; the end of a burst of several changes
    /// requests another.
    fn change(&mut self, now: Instant, cause: Cause, revalidate: &mut bool) -> Option<Cause> {
        let away = self.monitor.is_err() || self.empty;
        let follows_from_start =
            matches!(cause, Cause::Ports | Cause::Chassis | Cause::Neighbours | Cause::GatewayFlows);
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
        *revalidate = true;
        // Flows installed after a restart of ovs-vswitchd do not invalidate entries; when all are there, the resync does.
        (!(self.empty && flows)).then_some(cause)
    }

    /// Moves between open, grace period and closed.
    fn update_state(&mut self, now: Instant, invalidate: &mut Option<Cause>, revalidate: &mut bool) {
        match (self.unsynced_reason().is_none(), self.state) {
            (true, State::Hold { .. } | State::Closed) => {
                self.state = State::Open;
                self.burst = Some(Burst { first: now, last: now, flows: false });
                *invalidate = Some(Cause::Resync);
                *revalidate = true;
            }
            (false, State::Open) => self.state = State::Hold { since: now, until: now + self.times.hold },
            (false, State::Hold { until, .. }) if now >= until => self.state = State::Closed,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A synced state machine after its first debounce window, and the time.
    fn open() -> (Engine, Instant) {
        let mut engine = Engine::new(Times::default(), Tracking::Tolerant);
        let now = Instant::now();
        engine.take(now, Input::Enable(true));
        engine.take(now, Input::Database(true));
        let step = engine.take(now, Input::Monitor { flows: 100 });
        assert_eq!(step.invalidate, Some(Cause::Resync));
        assert!(step.gate.forward && !step.gate.learn, "a resync is a burst of its own");
        let now = engine.due().unwrap();
        let step = engine.take(now, Input::Tick);
        assert_eq!(step.invalidate, Some(Cause::Quiet));
        assert_eq!(step.gate, Gate { forward: true, learn: true, tcp: true, hold: false });
        (engine, now)
    }

    #[test]
    fn nothing_is_allowed_before_every_source_is_there() {
        let mut engine = Engine::new(Times::default(), Tracking::Unknown);
        let now = Instant::now();
        let inputs = [Input::Enable(true), Input::Database(true), Input::Monitor { flows: 3 }, Input::Tick];
        for input in inputs {
            assert_eq!(engine.take(now, input).gate, Gate::default());
        }
        assert!(engine.unsynced_reason().unwrap().contains("sequence check"));
        let step = engine.take(now, Input::Tracking(Tracking::Strict("x".to_owned())));
        assert_eq!(step.invalidate, Some(Cause::Resync));
        assert!(step.gate.forward && !step.gate.tcp, "UDP may be cached without TCP");
    }

    #[test]
    fn what_an_agent_before_us_left_goes_on_until_changes_are_seen_and_no_longer_than_a_hold() {
        let start = Instant::now();
        let adopted = || {
            let mut engine = Engine::new(Times::default(), Tracking::Unknown);
            let step = engine.take(start, Input::Adopt { tcp: true, left: None });
            assert_eq!(
                (step.invalidate, step.gate),
                (None, Gate { forward: true, learn: false, tcp: true, hold: true })
            );
            engine.take(start, Input::Enable(true));
            engine
        };
        let mut engine = adopted();
        let now = start + 300 * MS;
        engine.take(now, Input::Database(true));
        engine.take(now, Input::Tracking(Tracking::Tolerant));
        assert!(engine.gate().hold, "flows are not watched yet");
        let step = engine.take(now, Input::Monitor { flows: 100 });
        assert_eq!((step.invalidate, step.gate.hold), (Some(Cause::Resync), false));
        let mut engine = adopted();
        let step = engine.take(start + Times::default().hold, Input::Tick);
        assert_eq!(step.gate, Gate::default());
    }

    #[test]
    fn an_agent_that_finds_a_hold_takes_what_is_left_of_it() {
        let start = Instant::now();
        for left in [3_000 * MS, MS] {
            let mut engine = Engine::new(Times::default(), Tracking::Unknown);
            let step = engine.take(start, Input::Adopt { tcp: true, left: Some(left) });
            assert!(step.gate.forward && step.gate.hold);
            assert_eq!(engine.due(), Some(start + left));
            assert_eq!(engine.take(start + left, Input::Tick).gate, Gate::default());
        }
        let mut engine = Engine::new(Times::default(), Tracking::Unknown);
        let over = Input::Adopt { tcp: true, left: Some(Duration::ZERO) };
        assert_eq!(engine.take(start, over).gate, Gate::default());
    }

    #[test]
    fn the_first_change_of_a_burst_makes_invalid_and_learning_waits_for_its_end() {
        let (mut engine, now) = open();
        let step = engine.take(now, Input::Changed(Cause::Flows));
        assert_eq!((step.invalidate, step.gate.learn, step.gate.forward), (Some(Cause::Flows), false, true));
        let step = engine.take(now + 15 * MS, Input::Changed(Cause::Flows));
        assert_eq!((step.invalidate, step.gate.learn), (None, false));
        assert_eq!(engine.due(), Some(now + 35 * MS));
        let step = engine.take(now + 34 * MS, Input::Tick);
        assert_eq!((step.invalidate, step.gate.learn), (None, false));
        let step = engine.take(now + 35 * MS, Input::Tick);
        assert_eq!((step.invalidate, step.gate.learn, step.revalidate), (Some(Cause::Quiet), true, true));
        for round in [Round::First, Round::Second] {
            let step = engine.take(now + 300 * MS, Input::Revalidated(round));
            assert_eq!(
                (step.invalidate, step.gate.learn),
                (Some(Cause::Revalidated), true),
                "without stopping"
            );
        }
    }

    #[test]
    fn ovs_is_asked_at_the_first_change_and_after_the_last() {
        let (mut engine, now) = open();
        assert!(engine.take(now, Input::Changed(Cause::Flows)).revalidate);
        let step = engine.take(now + MS, Input::Revalidated(Round::First));
        assert_eq!(step.invalidate, None, "nothing was learned yet");
        let step = engine.take(now + 20 * MS, Input::Tick);
        assert_eq!((step.invalidate, step.revalidate), (Some(Cause::Quiet), false));
        let now = now + 600 * MS;
        assert!(engine.take(now, Input::Changed(Cause::Flows)).revalidate);
        assert!(!engine.take(now + MS, Input::Changed(Cause::Flows)).revalidate);
        let step = engine.take(now + 21 * MS, Input::Tick);
        assert_eq!((step.invalidate, step.revalidate), (Some(Cause::Quiet), true));
    }

    #[test]
    fn a_burst_that_does_not_end_is_cut_and_the_next_change_makes_invalid_again() {
        let (mut engine, start) = open();
        let mut invalidations = Vec::new();
        for ms in (0..=400).step_by(10) {
            invalidations.extend(
                engine.take(start + ms * MS, Input::Changed(Cause::Flows)).invalidate.map(|b| (ms, b)),
            );
        }
        let seen: Vec<_> = invalidations.iter().map(|(ms, source)| (*ms, source.name())).collect();
        assert_eq!(seen, [(0, "flows"), (200, "quiet"), (210, "flows")]);
    }

    #[test]
    fn cached_flows_go_on_through_a_restart_of_ovs_and_end_when_its_flows_are_back() {
        let (mut engine, now) = open();
        let step = engine.take(now, Input::MonitorLost("end of file".to_owned()));
        assert_eq!(
            step,
            Step {
                invalidate: None,
                gate: Gate { forward: true, learn: false, tcp: true, hold: true },
                revalidate: false,
            }
        );
        engine.take(now, Input::Tracking(Tracking::Unknown));
        // What ovs-vswitchd writes when it starts.
        let step = engine.take(now + 500 * MS, Input::Changed(Cause::Ports));
        assert_eq!((step.invalidate, engine.due()), (None, Some(now + Duration::from_secs(10))));
        let step = engine.take(now + 900 * MS, Input::Monitor { flows: 0 });
        assert!(step.gate.hold && step.gate.tcp && step.invalidate.is_none());
        engine.take(now + 900 * MS, Input::Tracking(Tracking::Tolerant));
        assert!(engine.unsynced_reason().unwrap().contains("no flows yet"));
        let step = engine.take(now + 1000 * MS, Input::Changed(Cause::Flows));
        assert_eq!((step.invalidate, step.gate.hold), (None, true), "the table is being filled");
        let step = engine.take(now + 1020 * MS, Input::Tick);
        assert_eq!(step.invalidate, Some(Cause::Resync));
        assert_eq!(step.gate, Gate { forward: true, learn: false, tcp: true, hold: false });
    }

    #[test]
    fn a_hold_ends_after_its_time_and_a_resync_opens_again() {
        let (mut engine, now) = open();
        engine.take(now, Input::Database(false));
        assert_eq!(engine.held_since(), Some(now));
        let almost = now + Duration::from_secs(10) - MS;
        assert!(engine.take(almost, Input::Tick).gate.forward);
        let step = engine.take(almost + MS, Input::Tick);
        assert_eq!((step.gate, engine.monitor_health()), (Gate::default(), MonitorHealth::Stale));
        let step = engine.take(almost + 2 * MS, Input::Database(true));
        assert_eq!((step.invalidate, step.gate.forward), (Some(Cause::Resync), true));
    }

    #[test]
    fn flow_changes_are_still_obeyed_while_only_the_database_is_away() {
        let (mut engine, now) = open();
        engine.take(now, Input::Database(false));
        assert_eq!(engine.take(now, Input::Changed(Cause::Flows)).invalidate, Some(Cause::Flows));
    }

    #[test]
    fn a_removed_pod_makes_invalid_even_while_ovs_is_away() {
        let (mut engine, now) = open();
        engine.take(now, Input::MonitorLost("x".to_owned()));
        assert_eq!(engine.take(now, Input::Changed(Cause::Removal)).invalidate, Some(Cause::Removal));
    }

    #[test]
    fn a_strict_connection_tracking_takes_tcp_out_even_in_a_hold() {
        let (mut engine, now) = open();
        engine.take(now, Input::MonitorLost("x".to_owned()));
        let step = engine.take(now, Input::Tracking(Tracking::Strict("on".to_owned())));
        assert!(step.gate.forward && step.gate.hold && !step.gate.tcp);
    }

    #[test]
    fn nothing_is_learned_while_ovs_cannot_tell_what_changes() {
        let (mut engine, now) = open();
        assert_eq!(
            engine.take(now, Input::Paused(Watched::Integration, true)).invalidate,
            Some(Cause::Flows)
        );
        let due = engine.due().unwrap();
        assert!(!engine.take(due, Input::Tick).gate.learn);
        let step = engine.take(due + MS, Input::Paused(Watched::Integration, false));
        assert_eq!(step.invalidate, Some(Cause::Flows));
        let due = engine.due().unwrap();
        assert!(engine.take(due, Input::Tick).gate.learn);
    }

    #[test]
    fn nothing_is_learned_before_what_changed_was_read_and_who_may_be_cached_was_decided() {
        let (mut engine, now) = open();
        engine.take(now, Input::Changed(Cause::Flows));
        engine.take(now, Input::Reading(Watched::Integration, true));
        let due = engine.due().unwrap();
        assert!(!engine.take(due, Input::Tick).gate.learn, "the end of the burst came first");
        engine.take(due, Input::Deciding(true));
        assert!(!engine.take(due, Input::Reading(Watched::Integration, false)).gate.learn);
        assert!(engine.take(due, Input::Deciding(false)).gate.learn);
        engine.take(due, Input::Reading(Watched::Integration, true));
        engine.take(due, Input::MonitorLost("x".to_owned()));
        engine.take(due, Input::Monitor { flows: 1 });
        let due = engine.due().unwrap();
        assert!(
            engine.take(due, Input::Tick).gate.learn,
            "a session that ended in the middle is not read on"
        );
    }

    #[test]
    fn a_node_that_is_switched_off_is_closed_and_comes_back_with_nothing_cached() {
        let (mut engine, now) = open();
        let step = engine.take(now, Input::Enable(false));
        assert_eq!(step.gate, Gate::default());
        let step = engine.take(now, Input::Enable(true));
        assert_eq!((step.invalidate, step.gate.forward), (Some(Cause::Path), true));
    }
}
