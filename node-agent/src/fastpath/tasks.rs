//! What runs beside the rest of the agent: the sources of changes, the clock, and the questions to OVS.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};
use ovsdb_client::{Change, Row, RowChange};
use supervision::Tasks;
use tokio::time::MissedTickBehavior;

use super::control::{Fastpath, Shared};
use super::decide::{self, View};
use super::engine::{Input, Source};
use super::{monitor, pressure, revalidation, tracking, underlay};
use crate::gateway::openflow::management_socket;
use crate::node::Node;
use crate::ovs::Ovs;
use crate::ovs::unixctl::Unixctl;

/// The programs stop to learn without a sign of life for five of these.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two looks at what the programs report.
const REPORTS: Duration = Duration::from_millis(250);
/// Decisions are made anew at least this often, whatever was missed.
const DECIDE: Duration = Duration::from_secs(30);

/// Where things are on this node.
#[derive(Debug, Clone)]
pub struct Places {
    /// `--ovs-db`: OVS's sockets are beside it.
    pub ovs_db: String,
    /// `--gateway-interface`.
    pub uplink: String,
    /// The times that the programs were given.
    pub timing: crate::fast_path::Timing,
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

impl Fastpath {
    /// Runs for as long as the agent. At its end everything stays in the kernel as it is, and the heartbeat stops.
    pub fn start(&self, node: &Node, places: Places) {
        node.metrics.register(|registry| self.shared.figures.register(registry));
        let view = View {
            ovs: node.ovs.clone(),
            pods: node.pods.clone(),
            netlink: node.netlink.clone(),
            uplink: places.uplink.clone(),
        };
        let view = self.shared.view.get_or_init(|| view).clone();
        let tasks = &node.tasks;
        tasks.spawn("paths", decisions(Arc::clone(&self.shared), view));
        if self.shared.cache.is_none() {
            return;
        }
        self.shared.set_timing(places.timing);
        self.shared.adopt();
        let unixctl = Unixctl::beside(&places.ovs_db);
        tasks.spawn("cache-clock", clock(Arc::clone(&self.shared)));
        tasks.spawn("cache-reports", reports(Arc::clone(&self.shared)));
        tasks.spawn("cache-pressure", pressure::watch(Arc::clone(&self.shared)));
        tasks.spawn("revalidation", revalidation::run(Arc::clone(&self.shared), unixctl.clone()));
        tasks.spawn("ovs-database", database(Arc::clone(&self.shared), node.ovs.clone()));
        let follow = underlay::follow(Arc::clone(&self.shared), node.netlink.clone(), places.uplink);
        tasks.spawn("underlay", follow);
        let of = if node.datapath.netdev {
            tracking::Of::Userspace { unixctl, keep: places.sabotage.keep_sequence_check }
        } else {
            tracking::Of::Kernel
        };
        tasks.spawn("connection-tracking", tracking::follow(Arc::clone(&self.shared), of));
        match management_socket(&places.ovs_db, api::ovn_name::INTEGRATION_BRIDGE) {
            Some(socket) => watch_flows(&self.shared, tasks, socket, places.sabotage.ignore_flows),
            None => {
                let why = format!("--ovs-db {} is not on this machine", places.ovs_db);
                self.shared.take(Input::MonitorLost(why));
            }
        }
    }
}

/// Starts the thread of the flow monitor. It ends with the last handle of the control.
fn watch_flows(shared: &Arc<Shared>, tasks: &Tasks, socket: PathBuf, ignore: bool) {
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
                shared.take(Input::Changed(Source::Flows));
            }
        }
        monitor::Event::Changed(came) => {
            if shared.take(Input::Changed(Source::Flows)) {
                let delay = came.elapsed();
                shared.figures.delay.observe(delay.as_secs_f64());
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
        monitor::Event::Effects(effects) => shared.set_effects(effects),
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

/// Follows the Open_vSwitch database.
async fn database(shared: Arc<Shared>, ovs: Ovs) {
    let mut changes = ovs.replica().changes();
    let mut synced = ovs.replica().synced();
    let there = *synced.borrow_and_update();
    if there {
        shared.tell_remotes(&ovs);
    }
    shared.take(Input::Database(there));
    loop {
        tokio::select! {
            changed = synced.changed() => {
                if changed.is_err() {
                    break;
                }
                let there = *synced.borrow_and_update();
                if there {
                    shared.tell_remotes(&ovs);
                }
                shared.take(Input::Database(there));
            }
            change = changes.next() => {
                let source = match change {
                    Some(Change::Rows(rows)) => rows.iter().filter_map(meaning).max_by_key(|s| *s == Source::Ports),
                    Some(Change::Resync) => Some(Source::Ports),
                    None => break,
                };
                if let Some(source) = source {
                    // First, so that nothing is learned from a node that is gone after what it taught is invalid.
                    shared.tell_remotes(&ovs);
                    shared.take(Input::Changed(source));
                }
                shared.decide.notify_one();
            }
        }
    }
    shared.take(Input::Database(false));
}

/// What a changed row has to do with verdicts. The rest comes and goes with every pod: `external_ids` above all.
fn meaning(change: &RowChange) -> Option<Source> {
    let ports = |differs: bool| differs.then_some(Source::Ports);
    match change.table {
        OpenVSwitch::TABLE => {
            let facts = |row: &OpenVSwitch| (row.external_ids.clone(), row.other_config.clone());
            differs(change, facts).then_some(Source::Chassis)
        }
        Interface::TABLE => ports(differs(change, |row: &Interface| {
            let policing = (row.ingress_policing_rate, row.ingress_policing_kpkts_rate);
            (row.name.clone(), row.ofport, row.r#type.clone(), row.options.clone(), row.ifindex, policing)
        })),
        Port::TABLE => ports(differs(change, |row: &Port| {
            (row.name.clone(), row.interfaces.clone(), row.qos, row.other_config.clone())
        })),
        Bridge::TABLE => ports(differs(change, |row: &Bridge| {
            let copies = (row.mirrors.clone(), row.sflow, row.netflow, row.ipfix);
            (row.name.clone(), row.ports.clone(), row.datapath_type.clone(), row.fail_mode.clone(), copies)
        })),
        Mirror::TABLE => Some(Source::Ports),
        _ => None,
    }
}

fn differs<R: Row, T: PartialEq>(change: &RowChange, facts: impl Fn(&R) -> T) -> bool {
    change.old::<R>().map(&facts) != change.new_row::<R>().map(&facts)
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

/// Whether a neighbour's or route's address has to do with tunnels: multicast and link-local ones have not.
pub(super) fn concerns(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_loopback(),
        IpAddr::V6(_) => false,
    }
}
