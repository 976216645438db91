//! Background tasks of the flow cache: event sources, timer, heartbeat, eligibility.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use supervision::Tasks;
use tokio::time::MissedTickBehavior;

use super::Manager;
use crate::flow_cache::cache::Timing;
use crate::flow_cache::invalidation::{MonitorError, Watched};
use crate::flow_cache::sources::faults::FaultInjection;
use crate::flow_cache::sources::{
    flow_events, forgotten, ovs_database, physical, revalidation, tracking, underlay,
};
use crate::flow_cache::state::Shared;
use crate::flow_cache::state::view::View;
use crate::flow_cache::{decide, pressure};
use crate::kernel::link::Netlink;
use crate::kube::pods::Pods;
use crate::metrics::Metrics;
use crate::ovs::Ovs;
use crate::ovs::openflow::management_socket;
use crate::ovs::unixctl::Unixctl;

/// Heartbeat interval. The programs stop learning after five intervals without one.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Interval at which divergences reported by the programs are read.
const REPORTS: Duration = Duration::from_millis(250);
/// Longest interval between two evaluations of eligibility, as a safety net for missed events.
const DECIDE: Duration = Duration::from_secs(30);
/// Changes within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(5);
/// Changes within so many times the duration of the last evaluation are looked at together: it looks at every port, and on a node with
/// thousands of them whose ports come and go it would use up a processor.
const SPARE: u32 = 4;
/// Longest time for which changes are gathered.
const GATHERED: Duration = Duration::from_secs(1);

/// Handles that the manager's tasks use.
#[derive(Debug, Clone)]
pub struct Handles {
    /// The Open_vSwitch database.
    pub ovs: Ovs,
    /// Pods of this node.
    pub pods: Pods,
    /// Netlink in the host network namespace.
    pub netlink: Netlink,
    /// Registry for the manager's metrics.
    pub metrics: Metrics,
    /// Supervised tasks of the agent.
    pub tasks: Tasks,
}

/// Settings of the manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--ovs-db`; the sockets of ovs-vswitchd are in the same directory.
    pub ovs_db: String,
    /// `--gateway-interface`, the uplink.
    pub uplink: String,
    /// `--mtu`: MTU of pods' interfaces, in bytes.
    pub pod_mtu: u32,
    /// Timing that the programs were loaded with.
    pub timing: Timing,
    /// Faults to inject, for tests.
    pub faults: FaultInjection,
}

impl Manager {
    /// Starts the tasks. When the agent ends, programs and maps stay in the kernel and only the heartbeat stops.
    pub fn start(&self, handles: &Handles, settings: Settings) {
        let Handles { ovs, pods, netlink, metrics, tasks } = handles;
        metrics.register(|registry| self.shared.metrics.register(registry));
        let view = View {
            ovs: ovs.clone(),
            pods: pods.clone(),
            netlink: netlink.clone(),
            uplink: settings.uplink.clone(),
            pod_mtu: settings.pod_mtu,
        };
        let view = self.shared.view.get_or_init(|| view).clone();
        // Before the first evaluation.
        self.shared.adopt();
        tasks.spawn("paths", decisions(Arc::clone(&self.shared), view.clone()));
        if self.shared.cache.is_none() {
            return;
        }
        self.shared.set_timing(settings.timing);
        let unixctl = Unixctl::beside(&settings.ovs_db);
        tasks.spawn("cache-clock", clock(Arc::clone(&self.shared)));
        tasks.spawn("cache-reports", reports(Arc::clone(&self.shared)));
        tasks.spawn("service-paths", self.services().clone().run());
        tasks.spawn("cache-pressure", pressure::watch(Arc::clone(&self.shared)));
        tasks.spawn("revalidation", revalidation::run(Arc::clone(&self.shared), unixctl.clone()));
        tasks.spawn("ovs-database", ovs_database::follow(Arc::clone(&self.shared), ovs.clone()));
        let follow = underlay::follow(Arc::clone(&self.shared), netlink.clone(), settings.uplink);
        tasks.spawn("underlay", follow);
        if !self.shared.netdev {
            tasks.spawn("forgotten-connections", forgotten::follow(Arc::clone(&self.shared)));
        }
        let of = if self.shared.netdev {
            tracking::Of::Userspace { unixctl, keep: settings.faults.keep_sequence_check }
        } else {
            tracking::Of::Kernel
        };
        tasks.spawn("connection-tracking", tracking::follow(Arc::clone(&self.shared), of));
        let (ovs_db, faults) = (settings.ovs_db, settings.faults);
        let socket = move |bridge: &str| {
            management_socket(&ovs_db, bridge)
                .ok_or_else(|| MonitorError::Elsewhere { ovs_db: ovs_db.clone() })
        };
        if !self.shared.netdev {
            let follow = physical::follow(Arc::clone(&self.shared), view.clone(), socket.clone(), faults);
            tasks.spawn("physical-networks", follow);
        }
        let gateway = {
            let socket = socket.clone();
            move || socket(&view.bridge().ok_or(MonitorError::NoBridge)?)
        };
        flow_events::watch(&self.shared, tasks, Watched::Gateway, gateway, faults);
        let integration = move || socket(api::ovn_name::INTEGRATION_BRIDGE);
        flow_events::watch(&self.shared, tasks, Watched::Integration, integration, faults);
    }
}

/// Timer: calls [`Shared::tick`] when it is due.
async fn clock(shared: Arc<Shared>) {
    loop {
        let due = shared.next_due();
        let wait = async {
            match due {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {
                shared.tick();
            }
            () = shared.due.notified() => {}
        }
    }
}

/// Writes the heartbeat, and counts and logs divergences found by the programs.
async fn reports(shared: Arc<Shared>) {
    let Some(cache) = shared.cache.clone() else { return };
    let mut period = tokio::time::interval(REPORTS);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut beaten: Option<Instant> = None;
    loop {
        period.tick().await;
        if beaten.is_none_or(|at| at.elapsed() >= HEARTBEAT - REPORTS / 2) {
            shared.check("write the heartbeat", cache.heartbeat());
            beaten = Some(Instant::now());
        }
        for divergence in shared.check("read divergences", cache.divergences()).unwrap_or_default() {
            tracing::error!(
                endpoint = divergence.endpoint,
                epoch = divergence.epoch,
                protocol = divergence.protocol,
                source = %divergence.source,
                destination = %divergence.destination,
                source_port = divergence.source_port,
                destination_port = divergence.destination_port,
                remembered = ?divergence.remembered,
                ovs = ?divergence.ovs,
                "divergence: OVS's verdict differs from the cached entry although no change was reported; the endpoint \
                 takes the slow path until the next invalidation"
            );
            shared.diverged(1);
        }
    }
}

/// Evaluates eligibility after each change of pods, OVS database or links.
async fn decisions(shared: Arc<Shared>, view: View) {
    let mut pods = view.pods.changes();
    let mut changes = view.ovs.replica().changes();
    let (mut queues, mut attached) = (None, Instant::now());
    loop {
        let begin = Instant::now();
        let again = attached.elapsed() >= DECIDE;
        if again {
            attached = begin;
        }
        decide::round(&shared, &view, &mut queues, again).await;
        let took = begin.elapsed();
        shared.metrics.evaluation.observe(took.as_secs_f64());
        tokio::select! {
            () = shared.decide.notified() => {}
            changed = pods.changed() => if changed.is_err() { return },
            change = changes.next() => if change.is_none() { return },
            () = tokio::time::sleep(DECIDE) => {}
        }
        // What belongs to one change comes in several, and a round looks at all pods.
        tokio::time::sleep(gathering(took)).await;
        while let Some(more) = changes.next().now_or_never() {
            if more.is_none() {
                return;
            }
        }
    }
}

/// How long changes are gathered before the next evaluation, if the last one took so long.
fn gathering(took: Duration) -> Duration {
    (took * SPARE).clamp(TOGETHER, GATHERED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_use_a_bounded_part_of_a_processor() {
        assert_eq!(gathering(Duration::from_micros(300)), TOGETHER);
        assert_eq!(gathering(Duration::from_millis(50)), Duration::from_millis(200));
        assert_eq!(gathering(Duration::from_secs(9)), GATHERED);
    }
}
