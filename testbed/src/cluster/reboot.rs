//! A node that ends and starts again, as a machine does: its processes, mounts and interfaces go, its disk stays.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::config::{Install, node_index, node_ip};
use super::{Bed, node, underlay};
use crate::exec;
use crate::host::identity::Identity;

impl Bed {
    /// Reboots a node; returns when its processes have been started again. What the API server knows of the node may
    /// still be from before.
    pub fn reboot(&self, node: &str) -> Result<()> {
        self.switch_off(node)?;
        self.switch_on(node)
    }

    /// Ends a node: every process at once, as if the power had gone.
    pub fn switch_off(&self, node: &str) -> Result<()> {
        if !self.config.node_names().iter().any(|n| n == node) {
            bail!("the cluster has no node {node}");
        }
        if self.config.api_host() == node {
            bail!("{node} has etcd, whose data is in memory: the cluster would be another one");
        }
        let recorded = self.host(node).recorded();
        recorded.iter().try_for_each(Identity::kill)?;
        exec::retry(Duration::from_secs(20), "the node ends", || {
            match recorded.iter().find(|process| process.is_alive()) {
                None => Ok(()),
                Some(process) => Err(anyhow!("process {} is still there", process.pid)),
            }
        })?;
        // Its end went with the node's namespace, which the kernel takes down when it has time.
        exec::retry(Duration::from_secs(20), "the node's wire goes", || underlay::unplug(self, node))?;
        self.runtime().forget_node(&self.config, node)
    }

    /// Starts a node that was ended.
    pub fn switch_on(&self, node: &str) -> Result<()> {
        let host = self.host(node);
        host.create()?;
        host.wait_ready()?;
        let index = node_index(node).with_context(|| format!("{node} is no node"))?;
        underlay::plug_in(self, node, node_ip(index))?;
        thread::scope(|scope| {
            let runtime = thread::Builder::new()
                .spawn_scoped(scope, || self.runtime().start_runtime(self, node))
                .context("cannot start a thread")?;
            if self.config.install == Install::Programs {
                node::start_ovs(self, node)?;
                if self.config.plugin {
                    node::start_agent(self, node)?;
                }
            }
            runtime.join().unwrap_or_else(|_| bail!("a thread panicked"))
        })?;
        self.runtime().start_node(self, node)
    }
}
