//! Real nodes: containerd, runc and kubelet in the namespaces of each node, the real scheduler, and cluster DNS.

pub mod cgroups;
mod containerd;
mod kubelet;
pub(crate) mod multus;
mod sandbox;
mod skew;
mod store;
pub mod sysctl;
mod wanted;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{NodeRuntime, PodName};
use crate::bed::{Bed, kubernetes};
use crate::config::{Config, Multus};
use crate::exec;

/// Cluster DNS, with a place for its address.
const DNS: &str = include_str!("../../../manifests/coredns.yaml");

/// Pods are containers of runc, started by containerd for a kubelet.
#[derive(Clone, Copy, Debug)]
pub struct Real;

impl NodeRuntime for Real {
    fn prepare_machine(&self, config: &Config) -> Result<()> {
        store::check(config)?;
        skew::check(config)?;
        multus::check(config)?;
        sysctl::take(&config.mark())?;
        config.node_names().iter().try_for_each(|node| cgroups::create(&config.mark(), node))
    }

    fn start_runtime(&self, bed: &Bed, node: &str) -> Result<()> {
        let relay = kubernetes::relay(bed.config(), node);
        bed.host(node).start("relay", &relay.iter().map(String::as_str).collect::<Vec<_>>(), &[])?;
        store::fill(bed, node)?;
        multus::install(bed, node)?;
        containerd::start(bed, node)
    }

    fn start_scheduler(&self, bed: &Bed) -> Result<()> {
        kubernetes::start_scheduler(bed)
    }

    fn start_node(&self, bed: &Bed, node: &str) -> Result<()> {
        kubelet::start(bed, node)
    }

    fn start_addons(&self, bed: &Bed) -> Result<()> {
        multus::install_before_ours(bed)?;
        multus::connect(bed)?;
        if bed.config().multus == Some(Multus::Secondary) {
            // Nobody serves services there: the other plugin has no part for that.
            return Ok(());
        }
        let text = DNS.replace("@DNS_SERVICE_IP@", &bed.config().dns_service_ip().to_string());
        bed.apply(&text).map(drop).context("cluster DNS")
    }

    fn wait_addons(&self, bed: &Bed) -> Result<()> {
        if bed.config().multus == Some(Multus::Secondary) {
            return Ok(());
        }
        // From every node: its way to services, across the network, to a real pod.
        for node in bed.config().node_names() {
            exec::retry(Duration::from_secs(60), "cluster DNS answers", || {
                let mut ask = bed.host(&node).network_command(bed.config().program("testbed"))?;
                ask.args(["probe", "name", "--timeout", "1", &bed.config().dns_service_ip().to_string()]);
                exec::output(ask.arg("kubernetes.default.svc.cluster.local"))
            })
            .with_context(|| {
                format!("asked from {node}; see `testbed kubectl -n kube-system describe pods`")
            })?;
        }
        Ok(())
    }

    fn processes(&self) -> &'static [&'static str] {
        &["containerd", "kubelet"]
    }

    fn forget_node(&self, config: &Config, node: &str) -> Result<()> {
        // What a reboot ends, beside the node's namespaces.
        cgroups::remove(&config.mark(), Some(node))?;
        cgroups::create(&config.mark(), node)
    }

    fn pod_command(&self, bed: &Bed, pod: &PodName<'_>, program: &Path) -> Result<Command> {
        let host = bed.host(pod.node);
        match sandbox::network(bed, pod)? {
            Some(netns) => host.pod_command(&netns, program),
            None => host.network_command(program),
        }
    }

    fn image(&self, config: &Config) -> Result<String> {
        wanted::image(config, "e2e-test-images/agnhost")
    }
}

/// The reference of an image that the upstream suite wants, by the end of its path.
pub fn image(config: &Config, path: &str) -> Result<String> {
    wanted::image(config, path)
}

/// What real nodes have changed outside of namespaces, put back; nothing is done twice.
pub fn clean_machine(config: &Config) -> Result<()> {
    cgroups::remove(&config.mark(), None)?;
    sysctl::give_back(&config.mark())
}

/// What is still there of that.
pub fn leftovers(config: &Config) -> Vec<String> {
    let mut left = cgroups::leftovers(&config.mark());
    left.extend(sysctl::leftovers(&config.mark()));
    left
}
