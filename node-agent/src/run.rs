//! Start and end of the agent.
//!
//! Start order: OVS, Kubernetes API, datapath, gateway, garbage of an earlier agent, CNI socket, and last the CNI configuration,
//! after which the container runtime uses the plugin. SIGTERM stops serving and does not affect traffic. When a supervised task
//! ends, the agent exits with its error, to be restarted.

use crate::kernel::unix_socket;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use supervision::Tasks;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::admin;
use crate::cni::gc;
use crate::cni::installer::files::Files;
use crate::cni::installer::guard;
use crate::cni::installer::in_use::{self, InUse};
use crate::cni::server;
use crate::config::{Config, DatapathFlag};
use crate::datapath::{self, Datapath};
use crate::flow_cache::metrics::collector::DatapathCollector;
use crate::flow_cache::metrics::service_collector::ServiceCollector;
use crate::flow_cache::{CacheControl, FaultInjection, Settings};
use crate::gateway::task;
use crate::health::Health;
use crate::kernel::link::Netlink;
use crate::kernel::sysctl_record;
use crate::kube::announce::{self, Outlet};
use crate::kube::chassis_certificate;
use crate::kube::client;
use crate::kube::pods::{self, Pods};
use crate::lock;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::ovs::Ovs;

/// Timeout for OVS and the Kubernetes API at start; then the agent exits.
const START_WAIT: Duration = Duration::from_secs(60);
/// Timeout for the exit of a previous agent.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// How long a runtime thread that is stuck in the kernel may delay the exit.
const STUCK: Duration = Duration::from_secs(10);
/// Timeout for CNI calls in progress when the agent exits.
const FINISH: Duration = Duration::from_secs(5);
/// Name of the task that serves CNI calls.
const CNI_SERVER: &str = "cni-server";

/// Serves the node until SIGTERM or SIGINT.
///
/// # Errors
/// The agent cannot start, or a supervised task has ended.
pub fn run(config: Config) -> anyhow::Result<()> {
    until_done(serve(config))
}

/// Removes everything the agent set up on the node; with `all`, also what an agent that is started later would use.
///
/// # Errors
/// The number of failed steps; each failure is logged.
pub fn cleanup(config: Config, all: bool) -> anyhow::Result<()> {
    until_done(crate::cleanup::cleanup(config, all))
}

/// Runs `work` on a runtime of its own.
///
/// # Errors
/// Error of `work`, or there is no runtime.
pub(crate) fn until_done(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(STUCK);
    done
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut held = None;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let (stop, stopped) = watch::channel(false);
    let (tasks, mut ends) = Tasks::new();
    let work = async {
        let programs = config.datapath != DatapathFlag::Ovs;
        // Invalid settings are reported at once, not after the wait for the previous agent.
        let client = client::client(&config).await?;
        held = Some(lock::hold(&config, programs, LOCK_WAIT).await?);
        start(config, client, &tasks, stopped).await?;
        Err(ends.next().await.into())
    };
    tokio::select! {
        ended = work => return ended,
        _ = terminate.recv() => tracing::info!("SIGTERM received, exiting; pod connections are not affected"),
        _ = interrupt.recv() => tracing::info!("SIGINT received, exiting; pod connections are not affected"),
    }
    stop.send_replace(true);
    // Calls in progress get time to finish. An ADD that still waits for addresses is undone by its DEL or by garbage collection at
    // the next start.
    let finished = async {
        while tasks.names().iter().any(|name| name == CNI_SERVER) {
            ends.next().await;
        }
    };
    if tokio::time::timeout(FINISH, finished).await.is_err() {
        tracing::warn!("CNI calls still in progress after {FINISH:?} are abandoned");
    }
    drop(held);
    Ok(())
}

async fn start(
    mut config: Config,
    client: kube::Client,
    tasks: &Tasks,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    sysctl_record::keep_in(&config.state_dir);
    config.gateway_interface = uplink(&config).await?;
    let config = Arc::new(config);
    let node = connect(&config, client.clone(), tasks).await?;
    let steering: Arc<dyn CacheControl> = Arc::new(node.flow_cache.clone());
    let view = admin::NodeView::new(node.clone(), &config.node_name, Some(steering), &config.ovs_db);
    let app = admin::serve::Application::new(node.clone(), Arc::new(view), stopped.clone());
    tasks.spawn("admin-server", app.clone().on_port(config.metrics_bind_address));
    tasks.spawn("log-level", supervision::log::follow_signal());
    tasks.spawn("slipctl-server", app.on_socket(config.admin_socket.clone()));
    if config.network.default_network {
        let (health, status) = (config.proxy_healthz_bind_address, config.proxy_status_bind_address);
        tasks.spawn("proxy-health", admin::proxy_health::serve(health, status, node.clone()));
    }
    let nodes = kube::Api::all(client.clone());
    let (outlet, announcements) = Outlet::new();
    tasks.spawn("annotations", announce::annotations(node.reports(), nodes.clone(), announcements));
    if let Some(directory) = config.sb_certificates.clone() {
        let name = config.node_name.clone();
        let (ovs, health) = (node.ovs.clone(), node.health.clone());
        tasks.spawn("certificate", chassis_certificate::keep(ovs, health, name, directory, client.clone()));
    }
    let context = task::context(&config, &node);
    node.health.not_met("gateway", "not set up yet");
    tasks.spawn("gateway", task::keep(node.clone(), context, client, outlet));
    tasks.spawn(CNI_SERVER, {
        let (node, config, stopped) = (node.clone(), Arc::clone(&config), stopped.clone());
        async move { serve_pods(&node, &config, stopped).await }
    });
    node.health.not_met(guard::CONDITION, "the agent is starting");
    let (outlet, in_use) = Outlet::new();
    let name = config.node_name.clone();
    tasks.spawn("node-condition", in_use::keep_condition(node.clone(), name, nodes, in_use));
    tasks.spawn("cni-files", keep_files(node, config, outlet));
    Ok(())
}

/// Finds the gateway interface; waits, as a booting machine may have no default route yet.
async fn uplink(config: &Config) -> anyhow::Result<String> {
    let netlink = Netlink::open()?;
    let end = tokio::time::Instant::now() + START_WAIT;
    loop {
        match crate::gateway::uplink::find(config, &netlink).await {
            Err(error) if tokio::time::Instant::now() < end => tracing::debug!("{error:#}"),
            done => {
                let name = done?;
                tracing::info!(interface = name, named = config.gateway_interface, "gateway interface found");
                return Ok(name);
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Connects to OVS and the Kubernetes API, loads the eBPF programs, and starts the pod watch and the flow cache.
///
/// # Errors
/// OVS is not reachable, or the datapath requested by `config` is not available.
pub async fn connect(config: &Config, client: kube::Client, tasks: &Tasks) -> anyhow::Result<Node> {
    let netlink = Netlink::open_in(tasks)?;
    let ovs = Ovs::connect(&config.ovs_db, START_WAIT).await.context("Open_vSwitch database (--ovs-db)")?;
    let (pods, metrics) = (Pods::default(), Metrics::default());
    tasks.spawn("pods-watch", pods::follow(client, config.node_name.clone(), pods.clone(), metrics.clone()));
    let datapath = Arc::new(datapath::choose(config, &ovs)?);
    let (path, attach, netdev) = (datapath.path(), datapath.attach, datapath.netdev);
    tracing::info!(path, ?attach, netdev, reason = datapath.reason, "datapath chosen");
    let flow_cache = datapath.manager(&config.state_dir)?;
    let node = Node {
        netlink,
        reaper: Netlink::open_on_thread("netlink-reaper", tasks).await?,
        ovs,
        pods,
        datapath,
        mtu: config.network.mtu.into(),
        cni_conf_dir: config.cni_conf_dir.clone(),
        default_network: config.network.default_network,
        calls: Default::default(),
        journal: Default::default(),
        metrics,
        health: Health::default(),
        peers: Default::default(),
        service_names: flow_cache.services().names().clone(),
        flow_cache,
        tasks: tasks.clone(),
    };
    node.metrics.register(|registry| {
        let Datapath { flow_cache, reason, pressure, .. } = &*node.datapath;
        let collector = DatapathCollector::new(path, reason, flow_cache.clone(), pressure.clone());
        registry.register_collector(Box::new(collector));
        if flow_cache.is_some() {
            let services = node.flow_cache.services().clone();
            registry.register_collector(Box::new(ServiceCollector::new(services)));
        }
    });
    let settings = Settings {
        ovs_db: config.ovs_db.clone(),
        uplink: config.gateway_interface.clone(),
        pod_mtu: config.network.mtu.into(),
        timing: datapath::timing(config),
        faults: faults(),
    };
    node.start_flow_cache(settings);
    Ok(node)
}

#[cfg(feature = "test-hooks")]
fn faults() -> FaultInjection {
    FaultInjection::from_environment()
}

#[cfg(not(feature = "test-hooks"))]
fn faults() -> FaultInjection {
    FaultInjection::default()
}

/// Collects garbage of an earlier agent, then serves CNI calls until `stopped`.
///
/// # Errors
/// The pods of the node cannot be listed, or the CNI socket cannot be opened.
pub async fn serve_pods(node: &Node, config: &Config, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    anyhow::ensure!(
        node.pods.synced(START_WAIT).await,
        "cannot list this node's pods within {START_WAIT:?}; is the API server reachable, and is the agent allowed to list and watch pods?"
    );
    match gc::round(node).await {
        Ok(done) => tracing::info!(done, "garbage collection of an earlier agent's resources finished"),
        Err(error) => {
            tracing::warn!(%error, "garbage collection of an earlier agent's resources failed; retrying later")
        }
    }
    node.tasks.spawn("clean-up", gc::follow(node.clone()));
    let listener = unix_socket::listen(&config.cni_socket)
        .with_context(|| format!("CNI socket {} (--cni-socket)", config.cni_socket.display()))?;
    server::serve(listener, node.clone(), until(stopped)).await.context("CNI server")
}

/// Installs the CNI configuration once ADD can be served, and keeps it installed.
async fn keep_files(node: Node, config: Arc<Config>, in_use: Outlet<InUse>) -> anyhow::Result<()> {
    let files = Files::new(
        &config.cni_bin_dir,
        &config.cni_conf_dir,
        &config.cni_socket,
        config.network.default_network,
    )?;
    wait_ready(&node).await;
    tracing::info!(node = config.node_name, "ready to serve pods");
    guard::keep(&node, files, &in_use).await;
    Ok(())
}

/// Waits until ADD can be served; logs conditions that are not met at debug level.
async fn wait_ready(node: &Node) {
    let missing = |node: &Node| {
        let all = node.problems();
        all.into_iter().filter(|p| !p.starts_with("cni:")).collect::<Vec<_>>()
    };
    loop {
        // Wakes on changes of the database; the timeout covers conditions outside of it.
        let good =
            node.ovs.wait_for(Duration::from_secs(1), |_| missing(node).is_empty().then_some(())).await;
        if good.is_some() {
            return;
        }
        tracing::debug!(problems = missing(node).join("; "), "not ready yet");
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender was dropped: the process is exiting.
    let _ = stopped.wait_for(|s| *s).await;
}
