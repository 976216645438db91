//! What the flow monitor reports, told to the state machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use supervision::Tasks;

use super::flow_monitor as monitor;
use crate::flow_cache::cause::Cause;
use crate::flow_cache::invalidation::Input;
use crate::flow_cache::manager::Shared;

/// Starts the thread of the flow monitor. It ends with the last handle of the control.
pub(in crate::flow_cache) fn watch(shared: &Arc<Shared>, tasks: &Tasks, socket: PathBuf, ignore: bool) {
    if ignore {
        tracing::error!(
            "asked for by a test: changed flows are ignored, and what OVS forbids may go on for \
             seconds"
        );
    }
    let weak = Arc::downgrade(shared);
    tasks.thread("flow-monitor", move |stop| {
        if let Err(error) = monitor::before_others() {
            tracing::warn!(
                %error,
                "the flow monitor gets no real-time priority (CAP_SYS_NICE); when all CPUs are busy it may be late"
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
            // Only so that an empty table does not stay one.
            if shared.waits_for_flows() {
                shared.take(Input::Changed(Cause::Flows));
            }
        }
        monitor::Event::Changed(came) => {
            if shared.take(Input::Changed(Cause::Flows)) {
                let delay = came.elapsed();
                shared.metrics.delay.observe(delay.as_secs_f64());
                tracing::debug!(?delay, "flows of br-int changed: everything cached is invalid");
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
            tracing::info!(flows, "watching the flows of br-int");
            shared.ovs_is_new.notify_one();
            shared.take(Input::Monitor { flows });
        }
        monitor::Event::Down(why) => {
            tracing::warn!(why, "the flows of br-int are not watched");
            shared.ovs_is_gone(why);
        }
    }
}
