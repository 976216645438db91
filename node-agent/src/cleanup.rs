//! `slipstream-node-agent cleanup`: the node as it was before the agent. Every step is tried; the failures come together.

use std::time::Duration;

use anyhow::Context;

use crate::args::Config;
use crate::cni::{del, install};
use crate::datapath::Datapath;
use crate::link::Netlink;
use crate::metrics::Metrics;
use crate::node::{Health, Node};
use crate::ovs::Ovs;
use crate::pods::Pods;

/// Does it. First the CNI configuration goes, so that no pod comes in between; pods still there lose their connection.
pub async fn cleanup(config: Config) -> anyhow::Result<()> {
    let mut errors = install::uninstall(&config.cni_conf_dir, &config.cni_bin_dir);
    errors.extend(remove_socket(&config));
    if let Err(error) = pods(&config).await {
        errors.push(error);
    }
    if let Err(error) = crate::bpf::Datapath::cleanup(&config.bpf_dir) {
        errors.push(anyhow::anyhow!("eBPF programs and maps under {}: {error}", config.bpf_dir.display()));
    }
    for error in &errors {
        tracing::error!("{error:#}");
    }
    anyhow::ensure!(errors.is_empty(), "{} steps failed, see above", errors.len());
    Ok(())
}

fn remove_socket(config: &Config) -> Option<anyhow::Error> {
    match std::fs::remove_file(&config.cni_socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Some(anyhow::Error::new(e).context(format!("remove {}", config.cni_socket.display())))
        }
        _ => None,
    }
}

async fn pods(config: &Config) -> anyhow::Result<()> {
    let ovs = Ovs::connect(&config.ovs_db, Duration::from_secs(10)).await.context("Open_vSwitch database")?;
    let node = Node {
        netlink: Netlink::open()?,
        datapath: Datapath::ovs_only(false, false, "cleanup").into(),
        ovs,
        pods: Pods::default(),
        mtu: config.mtu,
        calls: Default::default(),
        journal: Default::default(),
        metrics: Metrics::default(),
        health: Health::default(),
    };
    let mut failed = Vec::new();
    for container in del::containers(&node).await? {
        tracing::info!(container, "removing");
        failed.extend(del::release(&node, &container).await.err());
    }
    crate::cni::CniError::join(failed).map_or(Ok(()), |e| Err(e.into()))
}
