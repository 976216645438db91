//! A cluster as the command line describes it.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::Bed;
use super::config::{
    AttachMode, Config, ControlPlane, Datapath, GatewayMode, Install, Multus, OvsDatapath, Runtime, Uplink,
};
use crate::ui::say;

/// What cluster to make.
#[derive(Clone, Debug, clap::Args)]
pub struct Shape {
    /// Number of nodes.
    #[arg(long, default_value_t = 2)]
    pub nodes: u8,
    /// What the node agents forward with.
    #[arg(long, value_enum, default_value_t)]
    pub datapath: Datapath,
    /// How the node agents attach their programs.
    #[arg(long, value_enum, default_value_t)]
    pub attach_mode: AttachMode,
    /// How pods reach the outside.
    #[arg(long, value_enum, default_value_t)]
    pub gateway_mode: GatewayMode,
    /// The interface that a node has its address on.
    #[arg(long, value_enum, default_value_t)]
    pub uplink: Uplink,
    /// Which datapath of OVS the nodes have.
    #[arg(long, value_enum, default_value_t)]
    pub ovs_datapath: OvsDatapath,
    /// What runs pods on the nodes.
    #[arg(long, value_enum, default_value_t)]
    pub runtime: Runtime,
    /// How Slipstream, OVN and OVS come to the nodes.
    #[arg(long, value_enum, default_value_t)]
    pub install: Install,
    /// Where the control plane of Kubernetes runs.
    #[arg(long, value_enum, default_value_t)]
    pub control_plane: ControlPlane,
    /// Directory of an earlier release, as `cargo xtask release` makes it, that is installed in place of what was built here.
    #[arg(long)]
    pub release: Option<PathBuf>,
    /// Multus between the container runtime and Slipstream, which has this role under it.
    #[arg(long, value_enum)]
    pub multus: Option<Multus>,
    /// IPv6 beside IPv4.
    #[arg(long)]
    pub dual_stack: bool,
    /// IPv6 in place of IPv4.
    #[arg(long, conflicts_with = "dual_stack")]
    pub ipv6_only: bool,
    /// Neither controller nor node agents: a bed to try things on by hand.
    #[arg(long)]
    pub no_plugin: bool,
    /// A control: network policies are not enforced.
    #[arg(long)]
    pub without_policy: bool,
    /// How often the controller compares the northbound database with what it wants, seconds: 10, or this.
    #[arg(long)]
    pub verify_interval: Option<u32>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            nodes: 2,
            datapath: Datapath::default(),
            attach_mode: AttachMode::default(),
            gateway_mode: GatewayMode::default(),
            uplink: Uplink::default(),
            ovs_datapath: OvsDatapath::default(),
            runtime: Runtime::default(),
            install: Install::default(),
            control_plane: ControlPlane::default(),
            release: None,
            multus: None,
            dual_stack: false,
            ipv6_only: false,
            no_plugin: false,
            without_policy: false,
            verify_interval: None,
        }
    }
}

impl Shape {
    /// The description of that cluster.
    pub fn config(&self, name: &str) -> Result<Config> {
        let Self {
            nodes,
            datapath,
            attach_mode,
            gateway_mode,
            uplink,
            ovs_datapath,
            runtime,
            install,
            control_plane,
            ref release,
            multus,
            dual_stack,
            ipv6_only,
            no_plugin,
            without_policy,
            verify_interval,
        } = *self;
        ensure!(
            release.is_none() || install == Install::Chart,
            "--release is a chart and its image: it needs --install chart"
        );
        ensure!(
            install == Install::Programs || (runtime == Runtime::Containerd && !no_plugin),
            "--install chart needs kubelets that start pods: --runtime containerd, and no --no-plugin"
        );
        ensure!(
            multus.is_none() || (runtime == Runtime::Containerd && install == Install::Programs),
            "--multus needs a container runtime that calls it: --runtime containerd, and no --install chart"
        );
        let usual = Config::new(name, nodes)?;
        let config = Config {
            datapath,
            attach_mode,
            gateway_mode,
            uplink,
            ovs_datapath,
            runtime,
            install,
            control_plane,
            release: release.clone(),
            multus,
            plugin: !no_plugin,
            network_policy: !without_policy,
            verify_interval: verify_interval.unwrap_or(usual.verify_interval),
            ..usual
        };
        ensure!(
            !ipv6_only || multus != Some(Multus::Secondary),
            "--ipv6-only: the stand-in for another plugin under Multus has IPv4 alone"
        );
        Ok(match (dual_stack, ipv6_only) {
            (true, _) => config.with_dual_stack(),
            (false, true) => config.with_ipv6_only(),
            (false, false) => config,
        })
    }

    /// Brings that cluster up, in place of one that an earlier run has left.
    pub fn bring_up(&self, name: &str) -> Result<Bed> {
        if let Some(old) = Bed::rest(name)? {
            say(format_args!("taking down the cluster {name} of an earlier run"));
            old.down()?;
        }
        Bed::up(self.config(name)?)
    }
}
