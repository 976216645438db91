//! Flow monitors of the bridges that lead to physical networks, one for each.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::faults::FaultInjection;
use super::flow_events;
use crate::flow_cache::invalidation::{MonitorError, Watched};
use crate::flow_cache::state::Shared;
use crate::flow_cache::state::view::View;

/// Longest interval between two looks at which bridges there are, as a safety net for missed events, and at the threads.
const LOOK: Duration = Duration::from_secs(30);

/// Thread of one monitor. It ends soon after it is dropped.
struct Monitor {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A thread that could not be started, or that ended.
#[derive(Debug, thiserror::Error)]
pub(in crate::flow_cache) enum PhysicalError {
    #[error("cannot start the flow monitor of bridge {bridge}")]
    Start {
        bridge: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the flow monitor of bridge {bridge} has ended")]
    Ended { bridge: String },
}

/// Monitors the bridges that there are. `socket`: the management socket of a bridge, or why there is none. Never returns while the database
/// session exists.
///
/// # Errors
/// A monitor cannot be started, or has ended.
pub(in crate::flow_cache) async fn follow(
    shared: Arc<Shared>,
    view: View,
    socket: impl Fn(&str) -> Result<PathBuf, MonitorError> + Clone + Send + 'static,
    faults: FaultInjection,
) -> Result<(), PhysicalError> {
    let mut changes = view.ovs.replica().changes();
    let mut monitors = BTreeMap::<String, Monitor>::new();
    loop {
        let wanted: BTreeSet<String> = view.physical_bridges().into_iter().collect();
        for bridge in monitors.keys().filter(|name| !wanted.contains(*name)) {
            shared.physical_removed(bridge);
        }
        monitors.retain(|name, _| wanted.contains(name));
        if let Some((bridge, _)) = monitors.iter().find(|(_, monitor)| monitor.thread.is_finished()) {
            return Err(PhysicalError::Ended { bridge: bridge.clone() });
        }
        for bridge in wanted {
            if let Entry::Vacant(entry) = monitors.entry(bridge) {
                let monitor = start(&shared, entry.key(), socket.clone(), faults)?;
                entry.insert(monitor);
            }
        }
        tokio::select! {
            change = changes.next() => if change.is_none() { return Ok(()) },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

fn start(
    shared: &Arc<Shared>,
    bridge: &str,
    socket: impl Fn(&str) -> Result<PathBuf, MonitorError> + Send + 'static,
    faults: FaultInjection,
) -> Result<Monitor, PhysicalError> {
    let watched = Watched::Physical(shared.physical_added(bridge));
    let (weak, stop, name) = (Arc::downgrade(shared), Arc::new(AtomicBool::new(false)), bridge.to_owned());
    let asked = Arc::clone(&stop);
    let body = move || flow_events::run(&weak, watched, || socket(&name), faults, &asked);
    let thread = std::thread::Builder::new().name("physical-monitor".to_owned()).spawn(body);
    let thread = thread.map_err(|source| PhysicalError::Start { bridge: bridge.to_owned(), source })?;
    Ok(Monitor { stop, thread })
}
