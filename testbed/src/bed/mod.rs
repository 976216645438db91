//! A running cluster: its hosts, its databases and its API server.

pub mod access;
pub mod admission;
mod agent;
pub(crate) mod central;
mod field;
pub(crate) mod kubernetes;
pub mod objects;
pub(crate) mod pki;

use std::fs::File;
use std::process::Command;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};

use crate::config::{Config, Install};
use crate::exec;
use crate::host::HostHandle;

pub use access::Actor;
pub use agent::Agent;
pub use central::{ENVIRONMENT, controller_arguments};

/// Namespace of the chart's release.
pub(crate) const NAMESPACE: &str = "kube-system";
/// A pod of the release with the northbound database.
const CENTRAL: &str = "statefulset/slipstream-ovn-central";

/// A running cluster.
#[derive(Debug)]
pub struct Bed {
    pub(crate) config: Config,
}

impl Bed {
    /// A cluster that was brought up before.
    pub fn open(name: &str) -> Result<Self> {
        Ok(Self { config: Config::load(name)? })
    }

    /// Description of the cluster.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One host.
    #[must_use]
    pub fn host(&self, name: &str) -> HostHandle<'_> {
        HostHandle::new(&self.config, name)
    }

    /// Runs kubectl as the administrator and returns what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        exec::output(self.kubectl_command()?.args(args))
    }

    /// Runs kubectl as an identity that the administrator impersonates.
    pub fn kubectl_as(&self, actor: &Actor, args: &[&str]) -> Result<String> {
        exec::output(self.kubectl_command()?.args(actor.flags()).args(args))
    }

    /// kubectl as the administrator, to be given arguments.
    pub fn kubectl_command(&self) -> Result<Command> {
        let mut command = self.host("central").network_command(self.config.kubernetes("kubectl"))?;
        command.arg("--kubeconfig").arg(self.config.kubeconfig("admin"));
        // Most end before there is anything to collect; one that watches goes on.
        command.env("GOGC", "off").env("GOMEMLIMIT", "256MiB");
        Ok(command)
    }

    /// Runs `ovn-nbctl` on the cluster's northbound database.
    pub fn nbctl(&self, args: &[&str]) -> Result<String> {
        if self.config.install == Install::Chart {
            return self.nbctl_of_pod(args);
        }
        let mut command = self.host("central").command(self.config.ovs("ovn-nbctl"))?;
        let timeout = format!("--timeout={}", 30 * exec::patience());
        command.args([&timeout, "--no-leader-only", "--db=unix:/run/ovn/ovnnb_db.sock"]);
        exec::output(command.args(args))
    }

    /// Runs a program of Open vSwitch on a node, such as `ovs-ofctl`, and returns what it printed.
    pub fn ovs(&self, node: &str, program: &str, args: &[&str]) -> Result<String> {
        exec::output(self.host(node).command(self.config.ovs(program))?.args(args))
    }

    /// Asks or changes the Open_vSwitch database of a node by `ovs-vsctl`.
    pub fn vsctl(&self, node: &str, args: &[&str]) -> Result<String> {
        let timeout = format!("--timeout={}", 10 * exec::patience());
        let usual = [timeout.as_str(), "--db=unix:/run/openvswitch/db.sock"];
        self.ovs(node, "ovs-vsctl", &[&usual, args].concat())
    }

    /// Moves the calling thread, and those that it starts later, into the network of a host. Do this before an
    /// asynchronous runtime is made, to talk to the API server.
    pub fn enter_network(&self, host: &str) -> Result<()> {
        let pid = self.host(host).init()?.pid;
        let namespace =
            File::open(format!("/proc/{pid}/ns/net")).with_context(|| format!("network of {host}"))?;
        setns(&namespace, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter the network of {host}"))
    }

    /// Runs `ovn-nbctl` in a pod with the northbound database, as nobody outside has a certificate for it.
    fn nbctl_of_pod(&self, args: &[&str]) -> Result<String> {
        let usual = ["-n", NAMESPACE, "exec", CENTRAL, "--", "ovn-nbctl", "--timeout=30", "--no-leader-only"];
        self.kubectl(&[&usual[..], &["--db=unix:/run/ovn/ovnnb_db.sock"], args].concat())
    }
}
