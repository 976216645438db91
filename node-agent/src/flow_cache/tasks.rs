//! What runs beside the rest of the agent: the sources of changes, the clock, and the questions to OVS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use supervision::Tasks;
use tokio::time::MissedTickBehavior;

use super::sources::{flow_events, ovs_database, revalidation, tracking, underlay};
use super::{Timing, pressure};
use crate::flow_cache::eligibility::decide::{self, View};
use crate::flow_cache::invalidation::Input;
use crate::flow_cache::manager::{Manager, Shared};
use crate::kernel::link::Netlink;
use crate::kube::pods::Pods;
use crate::metrics::Metrics;
use crate::ovs::Ovs;
use crate::ovs::openflow::management_socket;
use crate::ovs::unixctl::Unixctl;

/// The programs stop to learn without a sign of life for five of these.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two looks at what the programs report.
const REPORTS: Duration = Duration::from_millis(250);
/// Decisions are made anew at least this often, whatever was missed.
const DECIDE: Duration = Duration::from_secs(30);

/// What the manager watches, and what it reports to.
#[derive(Debug, Clone)]
pub struct Handles {
    /// The Open_vSwitch database.
    pub ovs: Ovs,
    /// This node's pods.
    pub pods: Pods,
    /// The node's own network namespace.
    pub netlink: Netlink,
    /// Where the cache's own metrics are registered.
    pub metrics: Metrics,
    /// What must live as long as the agent.
    pub tasks: Tasks,
}

/// Settings of the manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--ovs-db`: OVS's sockets are beside it.
    pub ovs_db: String,
    /// `--gateway-interface`.
    pub uplink: String,
    /// The times that the programs were given.
    pub timing: Timing,
    /// For tests.
    pub sabotage: Sabotage,
}

/// What a test makes the agent do wrong, to show that it would be noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// `SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS=1` in programs built for tests: changed flows do not make anything invalid.
    pub ignore_flows: bool,
    /// `SLIPSTREAM_TEST_KEEP_SEQUENCE_CHECK=1` in programs built for tests: the sequence check of connection tracking is read, and not turned off.
    pub keep_sequence_check: bool,
}

impl Sabotage {
    /// What the environment says.
    #[cfg(feature = "test-hooks")]
    pub fn from_environment() -> Self {
        let set = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
        Self {
            ignore_flows: set("SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS"),
            keep_sequence_check: set("SLIPSTREAM_TEST_KEEP_SEQUENCE_CHECK"),
        }
    }
}

impl Manager {
    /// Runs for as long as the agent. At its end everything stays in the kernel as it is, and the heartbeat stops.
    pub fn start(&self, handles: &Handles, settings: Settings) {
        let Handles { ovs, pods, netlink, metrics, tasks } = handles;
        metrics.register(|registry| self.shared.figures.register(registry));
        let view = View {
            ovs: ovs.clone(),
            pods: pods.clone(),
            netlink: netlink.clone(),
            uplink: settings.uplink.clone(),
        };
        let view = self.shared.view.get_or_init(|| view).clone();
        tasks.spawn("paths", decisions(Arc::clone(&self.shared), view));
        if self.shared.cache.is_none() {
            return;
        }
        self.shared.set_timing(settings.timing);
        self.shared.adopt();
        let unixctl = Unixctl::beside(&settings.ovs_db);
        tasks.spawn("cache-clock", clock(Arc::clone(&self.shared)));
        tasks.spawn("cache-reports", reports(Arc::clone(&self.shared)));
        tasks.spawn("cache-pressure", pressure::watch(Arc::clone(&self.shared)));
        tasks.spawn("revalidation", revalidation::run(Arc::clone(&self.shared), unixctl.clone()));
        tasks.spawn("ovs-database", ovs_database::follow(Arc::clone(&self.shared), ovs.clone()));
        let follow = underlay::follow(Arc::clone(&self.shared), netlink.clone(), settings.uplink);
        tasks.spawn("underlay", follow);
        let of = if self.shared.netdev {
            tracking::Of::Userspace { unixctl, keep: settings.sabotage.keep_sequence_check }
        } else {
            tracking::Of::Kernel
        };
        tasks.spawn("connection-tracking", tracking::follow(Arc::clone(&self.shared), of));
        match management_socket(&settings.ovs_db, api::ovn_name::INTEGRATION_BRIDGE) {
            Some(socket) => flow_events::watch(&self.shared, tasks, socket, settings.sabotage.ignore_flows),
            None => {
                let why = format!("--ovs-db {} is not on this machine", settings.ovs_db);
                self.shared.take(Input::MonitorLost(why));
            }
        }
    }
}

/// Lets time pass for the engine.
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
                shared.take(Input::Tick);
            }
            () = shared.due.notified() => {}
        }
    }
}

/// Says that we live, and listens to what the programs found.
async fn reports(shared: Arc<Shared>) {
    let Some(cache) = shared.cache.clone() else { return };
    let mut period = tokio::time::interval(REPORTS);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut beaten: Option<Instant> = None;
    loop {
        period.tick().await;
        if beaten.is_none_or(|at| at.elapsed() >= HEARTBEAT - REPORTS / 2) {
            shared.check("say that the agent lives", cache.heartbeat());
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
                "OVS answers otherwise than was remembered, and nothing had changed; the endpoint takes the slow path until \
                 the next change"
            );
            shared.diverged(1);
        }
    }
}

/// Decides anew whenever something changed.
async fn decisions(shared: Arc<Shared>, view: View) {
    let mut pods = view.pods.changes();
    let mut changes = view.ovs.replica().changes();
    loop {
        decide::round(&shared, &view).await;
        tokio::select! {
            () = shared.decide.notified() => {}
            changed = pods.changed() => if changed.is_err() { return },
            change = changes.next() => if change.is_none() { return },
            () = tokio::time::sleep(DECIDE) => {}
        }
    }
}
