//! Order of start-up, and of cleaning up.
//!
//! Start: OVS, the API, the data path, the gateway, what an earlier agent left, the CNI socket, and last the CNI
//! configuration, by which the runtime finds us. End: SIGTERM stops serving and touches no traffic.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::{AttachMode, Config, Datapath as Wanted};
use crate::cni::attach::Names;
use crate::cni::install::Files;
use crate::cni::{guard, server};
use crate::datapath::{Datapath, Mode};
use crate::fastpath::{Fastpath, Places, Sabotage};
use crate::gateway::takeover::shim_ovs_end;
use crate::link::Netlink;
use crate::metrics::Metrics;
use crate::node::{Health, Node};
use crate::ovs::Ovs;
use crate::pods::{self, Pods};
use crate::programs::Loaded;
use crate::{admin, bpf, ctl, gateway_task, proxy_health, sync};

/// How long OVS and the API may take to be there when the agent starts. Whoever started us starts us again.
const START_WAIT: Duration = Duration::from_secs(60);

/// Serves the node until SIGTERM or SIGINT.
pub fn run(config: Config) -> anyhow::Result<()> {
    log();
    runtime()?.block_on(serve(config))
}

/// Puts the node back as it was before the agent.
pub fn cleanup(config: Config) -> anyhow::Result<()> {
    log();
    runtime()?.block_on(crate::cleanup::cleanup(config))
}

fn log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_unset| EnvFilter::new("info"));
    // Fails when a test has set one: then that one it is.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let (stop, stopped) = watch::channel(false);
    let work = start(config, stopped);
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        _ = terminate.recv() => tracing::info!("SIGTERM: ending; pods keep their connections"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending; pods keep their connections"),
    }
    stop.send_replace(true);
    // Calls under way get a moment to finish. One that still waits for its addresses is undone by its DEL, or by the next
    // start.
    match tokio::time::timeout(Duration::from_secs(5), work).await {
        Ok(done) => done,
        Err(_elapsed) => Ok(()),
    }
}

async fn start(config: Config, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let config = Arc::new(config);
    let client = kube_client(&config).await?;
    let node = connect(&config, client.clone()).await?;
    tokio::spawn(serve_admin(config.metrics_bind_address, node.clone(), stopped.clone()));
    tokio::spawn(serve_ctl(Arc::clone(&config), node.clone(), stopped.clone()));
    let (health, status) = (config.proxy_healthz_bind_address, config.proxy_status_bind_address);
    tokio::spawn(proxy_health::serve(health, status, node.clone()));
    let context = gateway_task::context(&config, &node.netlink, &node.ovs, &node.datapath);
    node.health.bad("gateway", "not set up yet");
    tokio::spawn(gateway_task::keep(node.clone(), context, client));
    let announced = async {
        tokio::select! {
            done = announce(&node, &config) => done,
            () = until(stopped.clone()) => Ok(()),
        }
    };
    tokio::try_join!(serve_pods(&node, &config, stopped.clone()), announced).map(drop)
}

/// Connects to OVS and the API, loads the programs, and starts to follow this node's pods.
pub async fn connect(config: &Config, client: kube::Client) -> anyhow::Result<Node> {
    let netlink = Netlink::open()?;
    let ovs = Ovs::connect(&config.ovs_db, START_WAIT).await.context("Open_vSwitch database (--ovs-db)")?;
    let pods = Pods::default();
    tokio::spawn({
        let (node, pods) = (config.node_name.clone(), pods.clone());
        async move { pods::follow(client, &node, pods).await }
    });
    let datapath = Arc::new(choose_datapath(config, &ovs)?);
    let (path, attach, netdev) = (datapath.path(), datapath.mode, datapath.netdev);
    tracing::info!(path, ?attach, netdev, reason = datapath.reason, "data path");
    let fastpath = Fastpath::new(&datapath, &config.state_dir)?;
    let node = Node {
        netlink,
        reaper: Netlink::open_on_thread("netlink-reaper").await?,
        ovs,
        pods,
        datapath,
        mtu: config.mtu,
        calls: Default::default(),
        journal: Default::default(),
        metrics: Metrics::default(),
        health: Health::default(),
        peers: Default::default(),
        fastpath,
    };
    node.metrics.watch_datapath(&node.datapath);
    let places = Places {
        ovs_db: config.ovs_db.clone(),
        uplink: config.gateway_interface.clone(),
        timing: config.timing(),
        sabotage: Sabotage::from_environment(),
    };
    node.fastpath.start(&node, places);
    Ok(node)
}

/// Puts right what an earlier agent left, then serves the container runtime until told to stop.
pub async fn serve_pods(node: &Node, config: &Config, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    anyhow::ensure!(
        node.pods.synced(START_WAIT).await,
        "no list of this node's pods from the Kubernetes API within {START_WAIT:?}; is the API server reachable, and may the agent list pods?"
    );
    match sync::round(node).await {
        Ok(done) => tracing::info!(done, "what an earlier agent left is put right"),
        Err(error) => {
            tracing::warn!(%error, "what an earlier agent left could not all be put right; trying again later")
        }
    }
    tokio::spawn(sync::follow(node.clone()));
    let listener = server::listen(&config.cni_socket)
        .with_context(|| format!("CNI socket {} (--cni-socket)", config.cni_socket.display()))?;
    server::serve(listener, node.clone(), until(stopped)).await.context("CNI server")
}

/// Once ADD can be served: lets the runtime know of us, and keeps it so.
async fn announce(node: &Node, config: &Config) -> anyhow::Result<()> {
    node.health.bad(guard::CONDITION, "the agent is starting");
    let files = Files::new(&config.cni_bin_dir, &config.cni_conf_dir, &config.cni_socket)?;
    wait_ready(node).await;
    tracing::info!(node = config.node_name, "ready to serve pods");
    guard::keep(node, files).await;
    Ok(())
}

/// Waits until ADD could be served, saying now and then what is missing.
async fn wait_ready(node: &Node) {
    let missing = |node: &Node| {
        let all = node.problems();
        all.into_iter().filter(|p| !p.starts_with("cni:")).collect::<Vec<_>>()
    };
    loop {
        // Any change of the database may be the one waited for; the clock is for the conditions outside of it.
        let good =
            node.ovs.wait_for(Duration::from_secs(1), |_| missing(node).is_empty().then_some(())).await;
        if good.is_some() {
            return;
        }
        tracing::debug!(problems = missing(node).join("; "), "not ready yet");
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the program.
    let _ = stopped.wait_for(|s| *s).await;
}

async fn serve_admin(address: std::net::SocketAddr, node: Node, stopped: watch::Receiver<bool>) {
    let served = async {
        let listener = tokio::net::TcpListener::bind(address).await?;
        axum::serve(listener, admin::router(node.clone())).with_graceful_shutdown(until(stopped)).await
    };
    if let Err(error) = served.await {
        tracing::error!(%address, %error, "metrics and health are not served (--metrics-bind-address)");
        node.health.bad("metrics", format!("{address}: {error}"));
    }
}

async fn serve_ctl(config: Arc<Config>, node: Node, stopped: watch::Receiver<bool>) {
    let steering: Arc<dyn ctl::Steering> = Arc::new(node.fastpath.clone());
    let view = ctl::NodeView::new(
        node,
        &config.node_name,
        Some(steering),
        ctl::pressure::PressureCache::default(),
        &config.ovs_db,
    );
    let socket = config.admin_socket.as_path();
    if let Err(error) = ctl::serve(socket, Arc::new(view), until(stopped)).await {
        tracing::error!(socket = %socket.display(), %error, "slipctl is not served (--admin-socket)");
    }
}

/// A client of the Kubernetes API.
pub async fn kube_client(config: &Config) -> anyhow::Result<kube::Client> {
    // Fails when it was installed before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kube_config = match &config.kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path);
            let file = file.with_context(|| format!("kubeconfig {} (--kubeconfig)", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &Default::default())
                .await
                .with_context(|| format!("kubeconfig {} (--kubeconfig)", path.display()))?
        }
        None => kube::Config::incluster().context("no --kubeconfig, and not inside a cluster")?,
    };
    tracing::info!(server = %kube_config.cluster_url, "Kubernetes API");
    kube::Client::try_from(kube_config).context("client of the Kubernetes API")
}

/// Chooses path and attach mode from what is wanted and what is there.
pub(crate) fn choose_datapath(config: &Config, ovs: &Ovs) -> anyhow::Result<Datapath> {
    let netdev = ovs.datapath_type() == "netdev";
    let ovs_only = |reason: String| Datapath::ovs_only(netdev, ovs.userspace_tso(), reason);
    if config.datapath == Wanted::Ovs {
        let clash = config.attach_mode == AttachMode::Interposed;
        anyhow::ensure!(
            !clash,
            "--attach-mode=interposed needs eBPF programs, which --datapath=ovs turns off"
        );
        leave_ebpf(config, ovs)?;
        return Ok(ovs_only("--datapath=ovs".to_owned()));
    }
    let loaded = match Loaded::load(&config.bpf_dir, config.programs()) {
        Ok(loaded) => loaded,
        Err(reason) if config.datapath == Wanted::Ebpf => anyhow::bail!("--datapath=ebpf: {reason}"),
        Err(reason) => {
            tracing::warn!(reason, "no eBPF on this node: every packet goes through OVS");
            leave_ebpf(config, ovs).with_context(|| reason.clone())?;
            return Ok(ovs_only(reason));
        }
    };
    let mode = match config.attach_mode {
        AttachMode::Direct => Mode::Direct,
        AttachMode::Interposed => Mode::Interposed,
        AttachMode::Auto if netdev => Mode::Interposed,
        AttachMode::Auto => Mode::Direct,
    };
    let mut datapath = ovs_only("eBPF programs are loaded".to_owned());
    datapath.mode = mode;
    datapath.uplink = Some(loaded.shared());
    let fast_path = loaded.fast_path().map_err(anyhow::Error::msg)?;
    fast_path.set_timing(config.timing()).map_err(anyhow::Error::msg)?;
    datapath.fast_path = Some(fast_path);
    datapath.programs = Some(Arc::new(loaded));
    Ok(datapath)
}

/// Takes away the programs of an earlier run with eBPF. Not while OVS is connected through them: then this is an error,
/// and traffic goes on as it is.
fn leave_ebpf(config: &Config, ovs: &Ovs) -> anyhow::Result<()> {
    if !config.bpf_dir.exists() {
        return Ok(());
    }
    let pods = ovs.pod_ports().into_iter().filter(|port| port.name == Names::of(&port.sandbox).shim_ovs);
    let mut through: Vec<String> = pods.map(|port| port.iface_id).collect();
    let uplink = shim_ovs_end(&config.gateway_interface);
    through.extend(ovs.port(&uplink).map(|_| format!("uplink {}", config.gateway_interface)));
    anyhow::ensure!(
        through.is_empty(),
        "connected through the eBPF programs of an earlier run: {}; run `slipstream-node-agent cleanup` first, which cuts \
         these pods off, and restart them",
        through.join(", ")
    );
    let dir = config.bpf_dir.display();
    bpf::Datapath::cleanup(&config.bpf_dir)
        .map_err(|e| anyhow::anyhow!("eBPF programs of an earlier run under {dir}: {e}"))
}
