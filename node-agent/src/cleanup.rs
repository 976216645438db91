//! `slipstream-node-agent cleanup`: removes everything the agent set up. A failed step does not stop the others.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::error::chain;
use parking_lot::Mutex;
use supervision::Tasks;

use crate::bpf::Programs;
use crate::cni::del;
use crate::cni::installer::files;
use crate::config::Config;
use crate::datapath::{self, Datapath};
use crate::flow_cache::Manager;
use crate::gateway;
use crate::health::Health;
use crate::kernel::link::Netlink;
use crate::kernel::sysctl_record;
use crate::kube::chassis_certificate;
use crate::kube::pods::Pods;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::ovs::{Ovs, chassis};

/// Removes CNI configuration, pods' ports and links, gateway, and eBPF programs. The CNI configuration goes first, so that no pod is
/// added meanwhile; existing pods lose their network.
///
/// With `all` the node is afterwards as it was before the first agent, except for OVS's own chassis name.
///
/// # Errors
/// The number of failed steps; each failure is logged.
pub async fn cleanup(config: Config, all: bool) -> anyhow::Result<()> {
    // Locked before anything is removed.
    // At the end of an installation it comes before the agent is told to go.
    let patience = Duration::from_secs(if all { 900 } else { 10 });
    let _held = crate::lock::hold(&config, false, patience).await?;
    let config = Arc::new(config);
    let mut errors = files::uninstall(&config.cni_conf_dir, &config.cni_bin_dir);
    errors.extend(remove_socket(&config));
    errors.extend(config.sb_certificates.as_deref().and_then(|dir| chassis_certificate::remove(dir).err()));
    errors.extend(with_ovs(&config, all).await);
    if let Err(error) = Programs::cleanup(&config.bpf_dir) {
        errors.push(anyhow::anyhow!("eBPF programs and maps under {}: {error}", config.bpf_dir.display()));
    }
    if all {
        let restored = sysctl_record::restore(&config.state_dir).context("kernel settings");
        errors.extend(restored.err());
    }
    // What is still to be done is read from there the next time.
    if all && errors.is_empty() {
        let directories = [&config.state_dir, config.cni_socket.parent().unwrap_or(&config.state_dir)];
        errors.extend(directories.into_iter().filter_map(|directory| empty(directory).err()));
    }
    for error in &errors {
        tracing::error!("{error:#}");
    }
    anyhow::ensure!(errors.is_empty(), "{} steps failed, see above", errors.len());
    Ok(())
}

/// Removes what is in a directory, which may be a mount of a container itself.
fn empty(directory: &Path) -> anyhow::Result<()> {
    let remove = || -> std::io::Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    };
    match remove() {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(anyhow::Error::new(e).context(format!("empty {}", directory.display())))
        }
        _ => Ok(()),
    }
}

fn remove_socket(config: &Config) -> Option<anyhow::Error> {
    match std::fs::remove_file(&config.cni_socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Some(anyhow::Error::new(e).context(format!("remove {}", config.cni_socket.display())))
        }
        _ => None,
    }
}

/// Removes pods and the gateway, which needs OVS.
async fn with_ovs(config: &Arc<Config>, all: bool) -> Vec<anyhow::Error> {
    let node = match connect(config).await {
        Ok(node) => node,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    if let Err(error) = pods(&node).await {
        errors.push(error.context("pods"));
    }
    let context = gateway::task::context(config, &node);
    if let Err(error) = gateway::cleanup(context).await {
        errors.push(error);
    }
    if all && let Err(error) = chassis::remove(&node.ovs).await {
        errors.push(error);
    }
    errors
}

async fn connect(config: &Config) -> anyhow::Result<Node> {
    let ovs = Ovs::connect(&config.ovs_db, Duration::from_secs(10)).await.context("Open_vSwitch database")?;
    let mut datapath = Datapath::ovs_only(ovs.datapath_type() == "netdev", ovs.userspace_tso(), "cleanup");
    // Loading absent programs would create them.
    if config.bpf_dir.exists() {
        match Programs::load_with(&config.bpf_dir, datapath::options(config)) {
            Ok(programs) => datapath.programs = Some(Arc::new(Mutex::new(programs))),
            Err(error) => {
                let reason = chain(&error);
                tracing::warn!(reason, "eBPF programs of the agent cannot be reused; removing their pins")
            }
        }
    }
    let flow_cache = Manager::none(datapath.netdev);
    // Cleanup is short; tasks are not supervised.
    let (tasks, _ends) = Tasks::new();
    Ok(Node {
        netlink: Netlink::open()?,
        reaper: Netlink::open_on_thread("netlink-reaper", &tasks).await?,
        ovs,
        pods: Pods::default(),
        datapath: Arc::new(datapath),
        mtu: config.network.mtu.into(),
        cni_conf_dir: config.cni_conf_dir.clone(),
        default_network: config.network.default_network,
        calls: Default::default(),
        journal: Default::default(),
        metrics: Metrics::default(),
        health: Health::default(),
        peers: Default::default(),
        service_names: Default::default(),
        flow_cache,
        tasks,
    })
}

async fn pods(node: &Node) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for container in del::containers(node).await? {
        tracing::info!(container, "removing pod");
        failed.extend(del::release(node, &container).await.err());
    }
    crate::cni::CniError::join(failed).map_or(Ok(()), |e| Err(e.into()))
}
