//! Thread of the flow monitor; translates its events into inputs of the state machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use supervision::Tasks;

use super::flow_monitor as monitor;
use crate::flow_cache::cause::Cause;
use crate::flow_cache::invalidation::Input;
use crate::flow_cache::manager::Shared;

/// Starts the thread of the flow monitor, which ends when the last [`Manager`](crate::flow_cache::Manager) is dropped.
/// `ignore`: fault injection, drop change events.
pub(in crate::flow_cache) fn watch(shared: &Arc<Shared>, tasks: &Tasks, socket: PathBuf, ignore: bool) {
    if ignore {
        tracing::error!(
            "fault injection: flow changes are ignored; entries that OVS no longer allows may be used for seconds"
        );
    }
    let weak = Arc::downgrade(shared);
    tasks.thread("flow-monitor", move |stop| {
        if let Err(error) = monitor::set_realtime_priority() {
            tracing::warn!(
                %error,
                "no real-time priority for the flow monitor (CAP_SYS_NICE); invalidation may be late when all CPUs are busy"
            );
        }
        monitor::watch(&socket, stop, |event| {
            let Some(shared) = weak.upgrade() else {
                stop.store(true, Ordering::Relaxed);
                return;
            };
            take_event(&shared, event, ignore);
        });
    });
}

fn take_event(shared: &Shared, event: monitor::Event, ignore: bool) {
    match event {
        monitor::Event::Changed(_) | monitor::Event::Paused(_) if ignore => {
            // Only to leave the state of an empty table.
            if shared.waits_for_flows() {
                shared.take(Input::Changed(Cause::Flows));
            }
        }
        monitor::Event::Changed(came) => {
            if shared.take(Input::Changed(Cause::Flows)) {
                let delay = came.elapsed();
                shared.metrics.delay.observe(delay.as_secs_f64());
                tracing::debug!(?delay, "flows of br-int changed; all entries invalidated");
            }
            shared.take(Input::Reading(true));
        }
        monitor::Event::Read => {
            shared.take(Input::Reading(false));
        }
        monitor::Event::Paused(paused) => {
            shared.take(Input::Paused(paused));
        }
        monitor::Event::Exclusions(exclusions) => shared.set_exclusions(exclusions),
        monitor::Event::Up { flows } => {
            tracing::info!(flows, "flow monitor of br-int connected");
            shared.ovs_is_new.notify_one();
            shared.take(Input::Monitor { flows });
        }
        monitor::Event::Down(why) => {
            tracing::warn!(why, "flow monitor of br-int lost");
            shared.ovs_lost(why);
        }
    }
}
