//! What a cluster needs beside its network: something that binds pods to nodes, and something that runs them.

pub mod cni;
pub mod kubelet;
pub mod record;
pub mod sandbox;
pub mod scheduler;
mod status;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::Bed;
use record::PodRecord;

/// Plays, or is, the scheduler, the kubelet and the container runtime.
pub trait NodeRuntime: Sync {
    /// Starts what binds pods to nodes.
    fn start_scheduler(&self, bed: &Bed) -> Result<()>;

    /// Starts what runs pods on a node.
    fn start_node(&self, bed: &Bed, node: &str) -> Result<()>;

    /// A command in the network of a pod, with the machine's files.
    fn pod_command(&self, bed: &Bed, pod: &PodName<'_>, program: &Path) -> Result<Command>;
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
        bed.host(node).start(
            "fake-node",
            &[&program, "fake-node", "--node", node, "--kubeconfig", &kubeconfig],
            &[],
        )
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
}
