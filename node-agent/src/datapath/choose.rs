//! Choice of datapath and attach mode, from flags and the capabilities of the node.

use std::sync::Arc;

use anyhow::Context;
use api::error::chain;
use parking_lot::Mutex;

use super::Datapath;
use crate::attach::{Attach, Names, shim_ovs_end};
use crate::bpf::{Options, PinnedCache, Programs, XdpWanted};
use crate::config::{AttachMode, Config, DatapathFlag, UnknownTunnel, XdpFlag};
use crate::flow_cache::{FlowCache, Timing};
use crate::ovs::Ovs;

/// Chooses datapath and attach mode, and loads the eBPF programs if they are used.
///
/// # Errors
/// `--datapath=ebpf` on a node that cannot run the programs; contradicting flags; or eBPF programs that are to be removed while
/// interfaces are still attached through them.
pub fn choose(config: &Config, ovs: &Ovs) -> anyhow::Result<Datapath> {
    let netdev = ovs.datapath_type() == "netdev";
    let ovs_only = |reason: String| Datapath::ovs_only(netdev, ovs.userspace_tso(), reason);
    if config.datapath == DatapathFlag::Ovs {
        let clash = config.attach_mode == AttachMode::Interposed;
        anyhow::ensure!(
            !clash,
            "--attach-mode=interposed needs eBPF programs, which --datapath=ovs turns off"
        );
        leave_ebpf(config, ovs)?;
        return Ok(ovs_only("--datapath=ovs".to_owned()));
    }
    let programs = match Programs::load_with(&config.bpf_dir, options(config)).map_err(|error| chain(&error))
    {
        Ok(programs) => Arc::new(Mutex::new(programs)),
        Err(reason) if config.datapath == DatapathFlag::Ebpf => anyhow::bail!("--datapath=ebpf: {reason}"),
        Err(reason) => {
            tracing::warn!(
                reason,
                "eBPF programs cannot be used on this node; every packet goes through OVS"
            );
            leave_ebpf(config, ovs).with_context(|| reason.clone())?;
            return Ok(ovs_only(reason));
        }
    };
    let attach = match config.attach_mode {
        AttachMode::Direct => Attach::Direct,
        AttachMode::Interposed => Attach::Interposed,
        AttachMode::Auto if netdev => Attach::Interposed,
        AttachMode::Auto => Attach::Direct,
    };
    let flow_cache = PinnedCache::open(Arc::clone(&programs))?;
    flow_cache.set_timing(timing(config))?;
    Ok(Datapath {
        attach,
        flow_cache: Some(Arc::new(flow_cache)),
        programs: Some(programs),
        ..ovs_only("eBPF programs are loaded".to_owned())
    })
}

/// Load options of the eBPF programs.
pub fn options(config: &Config) -> Options {
    Options {
        pod_mtu: config.network.mtu.into(),
        flows: config.flow_table_size,
        ipv6_only: config.network.cluster_subnets.iter().all(|subnet| subnet.cidr.addr().is_ipv6()),
        xdp: match config.xdp {
            XdpFlag::Off => XdpWanted::Off,
            XdpFlag::Auto => XdpWanted::Auto,
            XdpFlag::Native => XdpWanted::Native,
        },
        xdp_drops: config.xdp_unknown_tunnel == UnknownTunnel::Drop,
        #[cfg(feature = "test-hooks")]
        without_counters: config.bench_without_counters,
        ..Options::default()
    }
}

/// Timing of the flow cache.
#[cfg(feature = "test-hooks")]
pub fn timing(config: &Config) -> Timing {
    Timing { refresh: std::time::Duration::from_millis(config.refresh_ms), ..Timing::default() }
}

/// Timing of the flow cache.
#[cfg(not(feature = "test-hooks"))]
pub fn timing(_config: &Config) -> Timing {
    Timing::default()
}

/// Removes eBPF programs of an earlier run. Fails, without affecting traffic, while interfaces are attached through them.
fn leave_ebpf(config: &Config, ovs: &Ovs) -> anyhow::Result<()> {
    if !config.bpf_dir.exists() {
        return Ok(());
    }
    let pods = ovs.pod_ports().into_iter().filter(|port| port.name == Names::of(&port.id()).shim_ovs);
    let mut through: Vec<String> = pods.map(|port| port.iface_id).collect();
    for uplink in [Some(&config.gateway_interface), config.exgw_interface.as_ref()].into_iter().flatten() {
        through.extend(ovs.port(&shim_ovs_end(uplink)).map(|_| format!("uplink {uplink}")));
    }
    anyhow::ensure!(
        through.is_empty(),
        "attached through eBPF programs of an earlier run: {}; run `slipstream-node-agent cleanup` first, which \
         disconnects these pods, and restart them",
        through.join(", ")
    );
    let dir = config.bpf_dir.display();
    Programs::cleanup(&config.bpf_dir)
        .map_err(|e| anyhow::anyhow!("cannot remove eBPF programs of an earlier run under {dir}: {e}"))
}
