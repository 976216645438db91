//! What a cluster needs beside its network: something that binds pods to nodes, and something that runs them.

pub mod cni;
pub mod kubelet;
pub mod real;
pub mod record;
pub mod sandbox;
pub mod scheduler;
mod status;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::config::{Config, Runtime};
use record::PodRecord;

/// Plays, or is, the scheduler, the kubelet and the container runtime. What is above it is the same for all.
pub trait NodeRuntime: Sync {
    /// Changes outside of namespaces, before the hosts are made. `down` takes them back.
    fn prepare_machine(&self, config: &Config) -> Result<()>;

    /// Starts what a node needs to run pods and what can start without the API server.
    fn start_runtime(&self, bed: &Bed, node: &str) -> Result<()>;

    /// Starts what binds pods to nodes.
    fn start_scheduler(&self, bed: &Bed) -> Result<()>;

    /// Starts what runs pods on a node.
    fn start_node(&self, bed: &Bed, node: &str) -> Result<()>;

    /// Adds to the cluster what every such cluster has; its network may not exist yet.
    fn start_addons(&self, bed: &Bed) -> Result<()>;

    /// Waits until that is there.
    fn wait_addons(&self, bed: &Bed) -> Result<()>;

    /// The processes without which a node cannot become Ready.
    fn processes(&self) -> &'static [&'static str];

    /// Removes what a node has outside of its namespaces and would not outlive a reboot.
    fn forget_node(&self, config: &Config, node: &str) -> Result<()>;

    /// A command in the network of a pod, with the machine's files.
    fn pod_command(&self, bed: &Bed, pod: &PodName<'_>, program: &Path) -> Result<Command>;

    /// An image whose program answers on ports, as `agnhost netexec` does.
    fn image(&self, config: &Config) -> Result<String>;
}

/// What a cluster's nodes run.
#[must_use]
pub fn runtime(config: &Config) -> &'static dyn NodeRuntime {
    match config.runtime {
        Runtime::Netns => &Light,
        Runtime::Containerd => &real::Real,
    }
}

impl Bed {
    /// The kubelet and container runtime of this cluster, or their stand-in.
    #[must_use]
    pub fn runtime(&self) -> &dyn NodeRuntime {
        runtime(&self.config)
    }
}

/// A pod by name and the node that it runs on.
#[derive(Clone, Copy, Debug)]
pub struct PodName<'a> {
    pub node: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Pods are network namespaces with a small server in them; the CNI executable is run as a runtime does.
#[derive(Clone, Copy, Debug)]
pub struct Light;

impl NodeRuntime for Light {
    fn prepare_machine(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    fn start_runtime(&self, _: &Bed, _: &str) -> Result<()> {
        Ok(())
    }

    fn start_scheduler(&self, bed: &Bed) -> Result<()> {
        let config = bed.config();
        let program = config.program("testbed").display().to_string();
        let kubeconfig = config.kubeconfig("admin").display().to_string();
        bed.host("central").start("scheduler", &[&program, "scheduler", "--kubeconfig", &kubeconfig], &[])
    }

    fn start_node(&self, bed: &Bed, node: &str) -> Result<()> {
        let config = bed.config();
        let program = config.program("testbed").display().to_string();
        let kubeconfig = config.kubeconfig("admin").display().to_string();
        let mut argv = vec![program.as_str(), "fake-node", "--node", node, "--kubeconfig", &kubeconfig];
        argv.extend(config.dual_stack.then_some("--dual-stack"));
        argv.extend(config.ipv6_only.then_some("--ipv6-only"));
        bed.host(node).start("fake-node", &argv, &[])
    }

    fn start_addons(&self, _: &Bed) -> Result<()> {
        Ok(())
    }

    fn wait_addons(&self, _: &Bed) -> Result<()> {
        Ok(())
    }

    fn processes(&self) -> &'static [&'static str] {
        &["fake-node"]
    }

    fn forget_node(&self, _: &Config, _: &str) -> Result<()> {
        Ok(())
    }

    fn pod_command(&self, bed: &Bed, pod: &PodName<'_>, program: &Path) -> Result<Command> {
        let host = bed.host(pod.node);
        let record = PodRecord::find(&host.path(record::DIRECTORY)?, pod.namespace, pod.name)
            .with_context(|| format!("pod {}/{} does not run on {}", pod.namespace, pod.name, pod.node))?;
        match &record.netns {
            Some(netns) => host.pod_command(netns, program),
            None => host.network_command(program),
        }
    }

    fn image(&self, _: &Config) -> Result<String> {
        // No node pulls it.
        Ok("none".to_owned())
    }
}
