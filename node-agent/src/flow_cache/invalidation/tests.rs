use super::*;

const MS: Duration = Duration::from_millis(1);

fn everything() -> Concerned {
    Concerned { everything: true, ..Concerned::default() }
}

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
    assert_eq!((step.invalidate, step.gate.learn, step.revalidate), (Some(Cause::Quiet), true, everything()));
    for round in [Round::First, Round::Second] {
        let step = engine.take(now + 300 * MS, Input::Revalidated(round, everything()));
        assert_eq!((step.invalidate, step.gate.learn), (Some(Cause::Revalidated), true), "without stopping");
    }
}

#[test]
fn ovs_is_asked_at_the_first_change_and_after_the_last() {
    let (mut engine, now) = open();
    assert_eq!(engine.take(now, Input::Changed(Cause::Flows)).revalidate, everything());
    let step = engine.take(now + MS, Input::Revalidated(Round::First, everything()));
    assert_eq!(step.invalidate, None, "nothing was learned yet");
    let step = engine.take(now + 20 * MS, Input::Tick);
    assert_eq!((step.invalidate, step.revalidate), (Some(Cause::Quiet), Concerned::default()));
    let now = now + 600 * MS;
    assert_eq!(engine.take(now, Input::Changed(Cause::Flows)).revalidate, everything());
    assert!(engine.take(now + MS, Input::Changed(Cause::Flows)).revalidate.is_empty());
    let step = engine.take(now + 21 * MS, Input::Tick);
    assert_eq!((step.invalidate, step.revalidate), (Some(Cause::Quiet), everything()));
}

#[test]
fn a_burst_that_does_not_end_is_cut_and_the_next_change_makes_invalid_again() {
    let (mut engine, start) = open();
    let mut invalidations = Vec::new();
    for ms in (0..=400).step_by(10) {
        invalidations
            .extend(engine.take(start + ms * MS, Input::Changed(Cause::Flows)).invalidate.map(|b| (ms, b)));
    }
    let seen: Vec<_> = invalidations.iter().map(|(ms, source)| (*ms, source.name())).collect();
    assert_eq!(seen, [(0, "flows"), (200, "quiet"), (210, "flows")]);
}

#[test]
fn cached_flows_go_on_through_a_restart_of_ovs_and_end_when_its_flows_are_back() {
    let (mut engine, now) = open();
    let step = engine.take(now, Input::MonitorLost(MonitorError::Closed));
    assert_eq!(
        step,
        Step {
            invalidate: None,
            gate: Gate { forward: true, learn: false, tcp: true, hold: true },
            scopes: ScopeChange::default(),
            revalidate: Concerned::default(),
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
    engine.take(now, Input::MonitorLost(MonitorError::Closed));
    assert_eq!(engine.take(now, Input::Changed(Cause::Removal)).invalidate, Some(Cause::Removal));
}

#[test]
fn a_strict_connection_tracking_takes_tcp_out_even_in_a_hold() {
    let (mut engine, now) = open();
    engine.take(now, Input::MonitorLost(MonitorError::Closed));
    let step = engine.take(now, Input::Tracking(Tracking::Strict("on".to_owned())));
    assert!(step.gate.forward && step.gate.hold && !step.gate.tcp);
}

#[test]
fn nothing_is_learned_while_ovs_cannot_tell_what_changes() {
    let (mut engine, now) = open();
    assert_eq!(engine.take(now, Input::Paused(Watched::Integration, true)).invalidate, Some(Cause::Flows));
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
    engine.take(due, Input::MonitorLost(MonitorError::Closed));
    engine.take(due, Input::Monitor { flows: 1 });
    let due = engine.due().unwrap();
    assert!(engine.take(due, Input::Tick).gate.learn, "a session that ended in the middle is not read on");
}

#[test]
fn a_node_that_is_switched_off_is_closed_and_comes_back_with_nothing_cached() {
    let (mut engine, now) = open();
    let step = engine.take(now, Input::Enable(false));
    assert_eq!(step.gate, Gate::default());
    let step = engine.take(now, Input::Enable(true));
    assert_eq!((step.invalidate, step.gate.forward), (Some(Cause::Path), true));
}

#[test]
fn the_gateway_bridges_monitor_stops_learning_as_br_ints_does_and_closes_nothing() {
    let (mut engine, now) = open();
    let step = engine.take(now, Input::Changed(Cause::GatewayFlows));
    assert_eq!((step.invalidate, step.gate.learn), (Some(Cause::GatewayFlows), false));
    let due = engine.due().unwrap();
    engine.take(now, Input::Reading(Watched::Gateway, true));
    assert!(!engine.take(due, Input::Tick).gate.learn, "the updates are not read yet");
    assert!(engine.take(due, Input::Reading(Watched::Gateway, false)).gate.learn);
    engine.take(due, Input::Paused(Watched::Gateway, true));
    // It is lost while it was paused, as when OVS ends: entries stay in use. What changed meanwhile is told by its return.
    let step = engine.take(due + MS, Input::GatewayMonitor(false));
    assert_eq!((step.invalidate, step.gate.forward), (None, true));
    engine.take(engine.due().unwrap(), Input::Tick);
    let step = engine.take(due + 1000 * MS, Input::GatewayMonitor(true));
    assert_eq!((step.invalidate, step.gate.learn), (Some(Cause::GatewayFlows), false));
    assert!(engine.take(engine.due().unwrap(), Input::Tick).gate.learn);
    assert_eq!(engine.monitor_health(), MonitorHealth::Synced);
}

#[test]
fn monitors_of_physical_networks_stop_learning_each_by_itself_and_none_that_is_gone() {
    let (mut engine, now) = open();
    for number in [1, 2] {
        let step = engine.take(now, Input::PhysicalMonitor(number, true));
        assert!(!step.gate.learn, "what changed before is told by its coming up");
    }
    let due = engine.due().unwrap();
    assert!(engine.take(due, Input::Tick).gate.learn);
    for number in [1, 2] {
        assert!(!engine.take(due, Input::Reading(Watched::Physical(number), true)).gate.learn);
    }
    assert!(!engine.take(due, Input::Reading(Watched::Physical(1), false)).gate.learn, "the other reads");
    // It goes while it reads, and its thread ends a little later.
    assert!(engine.take(due, Input::PhysicalMonitor(2, false)).gate.learn);
    assert!(engine.take(due, Input::Reading(Watched::Physical(2), true)).gate.learn);
    engine.take(due, Input::Paused(Watched::Physical(2), true));
    engine.take(engine.due().unwrap(), Input::Tick);
    assert!(engine.take(due + 1000 * MS, Input::Tick).gate.learn);
    assert_eq!(engine.monitor_health(), MonitorHealth::Synced);
}

#[test]
fn flows_of_the_gateway_bridge_that_come_while_ovs_is_away_do_not_end_the_grace_period() {
    let (mut engine, now) = open();
    engine.take(now, Input::MonitorLost(MonitorError::Closed));
    assert_eq!(engine.take(now + MS, Input::Changed(Cause::GatewayFlows)).invalidate, None);
    engine.take(now + MS, Input::Monitor { flows: 0 });
    let step = engine.take(now + 2 * MS, Input::Changed(Cause::GatewayFlows));
    assert_eq!((step.invalidate, engine.waits_for_flows()), (None, true));
    assert!(step.gate.forward && step.gate.hold);
}

fn buckets(step: &Step) -> Vec<(u32, bool)> {
    let mut buckets = step.scopes.buckets.clone();
    buckets.sort_unstable();
    buckets
}

fn scopes(of: &[u32]) -> Input {
    Input::Scopes(Cause::Flows, of.to_vec())
}

#[test]
fn a_change_of_some_scopes_ends_their_entries_and_stops_learning_in_them_alone() {
    let (mut engine, now) = open();
    let step = engine.take(now, scopes(&[1, 2]));
    assert_eq!((step.invalidate, step.gate.learn), (None, true));
    assert_eq!((buckets(&step), step.scopes.closing), (vec![(1, true), (2, true)], true));
    assert_eq!(step.revalidate, Concerned { everything: false, buckets: [1, 2].into() });
    let step = engine.take(now + 15 * MS, scopes(&[2, 3]));
    assert_eq!(buckets(&step), [(3, true)], "of 2 nothing has been learned");
    assert_eq!(engine.due(), Some(now + 20 * MS));
    let step = engine.take(now + 20 * MS, Input::Tick);
    assert_eq!((buckets(&step), step.scopes.closing), (vec![(1, false)], true));
    assert!(step.revalidate.is_empty(), "asked at the change already");
    let step = engine.take(now + 35 * MS, Input::Tick);
    assert_eq!((buckets(&step), step.scopes.closing), (vec![(2, false), (3, false)], false));
    assert_eq!(step.revalidate.buckets, [2].into(), "it changed again after OVS was asked");
    assert_eq!(engine.due(), None);
}

#[test]
fn the_scopes_of_a_change_end_again_with_each_round_of_ovs() {
    let (mut engine, now) = open();
    engine.take(now, scopes(&[1, 2]));
    let of = |buckets: &[u32]| Concerned { everything: false, buckets: buckets.iter().copied().collect() };
    let step = engine.take(now + MS, Input::Revalidated(Round::First, of(&[1, 2])));
    assert_eq!(buckets(&step), [], "nothing has been learned");
    engine.take(now + 20 * MS, Input::Tick);
    engine.take(now + 30 * MS, scopes(&[2]));
    let step = engine.take(now + 31 * MS, Input::Revalidated(Round::Second, of(&[1, 2])));
    assert_eq!((buckets(&step), step.scopes.closing), (vec![(1, false), (2, true)], true));
    assert_eq!((step.invalidate, step.gate.learn), (None, true));
    let step = engine.take(now + 60 * MS, Input::Revalidated(Round::First, of(&[2])));
    // The tick that is due is part of any step.
    assert!(buckets(&step).contains(&(2, false)) && !step.scopes.closing);
}

#[test]
fn scopes_that_change_without_end_are_opened_now_and_then_and_end_their_entries_each_time() {
    let (mut engine, start) = open();
    let mut seen = Vec::new();
    for ms in (0..=400).step_by(10) {
        seen.extend(buckets(&engine.take(start + ms * MS, scopes(&[1]))).into_iter().map(|it| (ms, it.1)));
    }
    assert_eq!(seen, [(0, true), (200, false), (210, true)]);
}

#[test]
fn while_ovs_is_away_a_change_of_scopes_is_one_of_everything() {
    let (mut engine, now) = open();
    engine.take(now, Input::MonitorLost(MonitorError::Closed));
    let step = engine.take(now, scopes(&[1]));
    assert_eq!((step.invalidate, buckets(&step)), (Some(Cause::Flows), vec![]));
}

#[test]
fn a_divergence_does_not_keep_an_endpoint_off_for_good() {
    let (mut engine, now) = open();
    assert_eq!(engine.take(now, Input::Diverged).invalidate, None);
    engine.take(now + Duration::from_secs(3), Input::Diverged);
    assert_eq!(engine.due(), Some(now + DIVERGED));
    assert_eq!(engine.take(now + DIVERGED, Input::Tick).invalidate, Some(Cause::Diverged));
    assert_eq!(engine.due(), None);
}
