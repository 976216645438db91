//! Threads of the flow monitors; translate their events into inputs of the state machine.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use supervision::Tasks;

use super::faults::FaultInjection;
use super::flow_monitor as monitor;
use crate::flow_cache::invalidation::{Cause, Input, MonitorError, Watched};
use crate::flow_cache::scope::Impact;
use crate::flow_cache::state::Shared;

/// Starts the thread that monitors `bridge`, which ends when the last [`Manager`](crate::flow_cache::Manager) is dropped. `socket`: the
/// bridge's management socket, or why there is none; asked at each attempt to connect.
pub(in crate::flow_cache) fn watch(
    shared: &Arc<Shared>,
    tasks: &Tasks,
    bridge: Watched,
    socket: impl Fn() -> Result<PathBuf, MonitorError> + Send + 'static,
    faults: FaultInjection,
) {
    if faults.ignore_flows && bridge == Watched::Integration {
        tracing::error!(
            "fault injection: flow changes are ignored; entries that OVS no longer allows may be used for seconds"
        );
    }
    let weak = Arc::downgrade(shared);
    let name = match bridge {
        Watched::Integration => "flow-monitor",
        Watched::Gateway => "gateway-monitor",
        Watched::Physical(_) => "physical-monitor",
    };
    tasks.thread(name, move |stop| run(&weak, bridge, socket, faults, stop));
}

/// The body of such a thread. `weak`: the thread ends when that is gone, or with `stop`.
pub(super) fn run(
    weak: &Weak<Shared>,
    bridge: Watched,
    socket: impl Fn() -> Result<PathBuf, MonitorError>,
    faults: FaultInjection,
    stop: &AtomicBool,
) {
    if let Err(error) = monitor::set_realtime_priority() {
        tracing::warn!(
            %error,
            "no real-time priority for the flow monitor (CAP_SYS_NICE); invalidation may be late when all CPUs are busy"
        );
    }
    if let Some(rule) = faults.without.filter(|_| bridge == Watched::Integration) {
        tracing::error!(?rule, "fault injection: flow changes that this rule answers concern nothing");
    }
    let begin = || match faults.without {
        Some(rule) if bridge == Watched::Integration => monitor::Session::without(rule),
        _ => monitor::Session::new(bridge),
    };
    monitor::watch(begin, socket, stop, |event| {
        let Some(shared) = weak.upgrade() else {
            stop.store(true, Ordering::Relaxed);
            return;
        };
        take_event(&shared, bridge, event, faults.ignore_flows);
    });
}

fn take_event(shared: &Shared, bridge: Watched, event: monitor::Event, ignore: bool) {
    match event {
        // A flow that excludes ports from the cache is a change of flows as well.
        monitor::Event::Reading | monitor::Event::Exclusions(_) if ignore => {}
        monitor::Event::Changed(..) | monitor::Event::Paused(_) if ignore => {
            // Only to leave the state of an empty table.
            if bridge == Watched::Integration && shared.waits_for_flows() {
                shared.take(Input::Changed(Cause::Flows));
            }
        }
        monitor::Event::Reading => {
            shared.take(Input::Reading(bridge, true));
        }
        monitor::Event::Changed(came, impact) => changed(shared, bridge, came, &impact),
        monitor::Event::Lint(why) => {
            match &why {
                Some(why) => tracing::warn!(
                    why,
                    ?bridge,
                    "flows are not as OVN is known to write them; every change of them invalidates all cached flows"
                ),
                None => tracing::info!(?bridge, "flows are as OVN is known to write them"),
            }
            *shared.unscoped_reason.lock() = why.unwrap_or_default();
        }
        monitor::Event::Read => {
            shared.take(Input::Reading(bridge, false));
        }
        monitor::Event::Paused(paused) => {
            shared.take(Input::Paused(bridge, paused));
        }
        monitor::Event::Exclusions(exclusions) => shared.set_exclusions(bridge, exclusions),
        monitor::Event::Up { flows } => {
            tracing::info!(flows, ?bridge, "flow monitor connected");
            match bridge {
                Watched::Integration => {
                    shared.ovs_is_new.notify_one();
                    shared.take(Input::Monitor { flows });
                }
                Watched::Gateway => shared.gateway_monitor(Ok(())),
                Watched::Physical(number) => shared.physical_monitor(number, Ok(())),
            }
        }
        monitor::Event::Down(why) => {
            tracing::warn!(why = why.to_string(), ?bridge, "flow monitor lost");
            match bridge {
                Watched::Integration => shared.ovs_lost(why),
                Watched::Gateway => shared.gateway_monitor(Err(why)),
                Watched::Physical(number) => shared.physical_monitor(number, Err(why)),
            }
        }
    }
}

/// Ends the entries that a change of flows concerns.
fn changed(shared: &Shared, bridge: Watched, came: Instant, impact: &Impact) {
    let cause = bridge.cause();
    let ended = match (impact.everything, impact.is_nothing()) {
        (Some(why), _) => {
            shared.metrics.unscoped(why.name());
            shared.take(Input::Changed(cause))
        }
        (None, true) => false,
        (None, false) => shared.take_scopes(cause, &impact.scopes),
    };
    if ended {
        let delay = came.elapsed();
        shared.metrics.delay.observe(delay.as_secs_f64());
        let Impact { everything, updates, .. } = impact;
        tracing::debug!(?delay, ?bridge, updates, ?everything, scopes = impact.scopes.len(), "flows changed");
    }
}
