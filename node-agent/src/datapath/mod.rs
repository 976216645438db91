//! Datapath and attach mode of the node, and the reason for the choice.

mod choose;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::attach::{Attach, OVS_ONLY_GROUP};
use crate::bpf::{Programs, XdpState};
use crate::flow_cache::metrics::pressure_cache::PressureCache;
use crate::flow_cache::{FlowCache, Manager, StoreError};

pub use choose::{choose, options, timing};

/// Datapath and attach mode, chosen at start.
#[derive(Debug, Clone)]
pub struct Datapath {
    /// Attach mode of new pods.
    pub attach: Attach,
    /// OVS uses its userspace datapath, which reads ports through packet sockets.
    pub netdev: bool,
    /// OVS does checksums and segmentation itself (`userspace-tso-enable`).
    pub userspace_tso: bool,
    /// eBPF programs; `None` for OVS only. Calls may block for some milliseconds.
    pub programs: Option<Arc<Mutex<Programs>>>,
    /// Flow cache; `None` for OVS only.
    pub flow_cache: Option<Arc<dyn FlowCache>>,
    /// Fill level of the flow cache's maps, shared by metrics and status, as reading it iterates over the maps.
    pub pressure: PressureCache,
    /// Reason for the choice, for status.
    pub reason: String,
}

impl Datapath {
    /// OVS only, because of `reason`.
    pub fn ovs_only(netdev: bool, userspace_tso: bool, reason: impl Into<String>) -> Self {
        Self {
            attach: Attach::Direct,
            netdev,
            userspace_tso,
            programs: None,
            flow_cache: None,
            pressure: PressureCache::default(),
            reason: reason.into(),
        }
    }

    /// Whether the XDP program is attached to the uplink.
    pub fn xdp(&self) -> XdpState {
        self.programs.as_ref().map_or(XdpState::Off, |programs| programs.lock().xdp().clone())
    }

    /// `ebpf` or `ovs`.
    pub fn path(&self) -> &'static str {
        if self.programs.is_some() { "ebpf" } else { "ovs" }
    }

    /// `netdev` (userspace) or `system` (kernel), as OVS names its datapath types.
    pub fn ovs_type(&self) -> &'static str {
        if self.netdev { "netdev" } else { "system" }
    }

    /// Link group of a pod's host veth.
    pub fn host_group(&self) -> u32 {
        if self.netdev && self.attach == Attach::Direct { OVS_ONLY_GROUP } else { 0 }
    }

    /// Whether a pod must compute transmit checksums itself, as a packet socket on the host end would read incomplete ones.
    pub fn pod_completes_checksums(&self) -> bool {
        self.netdev && self.attach == Attach::Direct && !self.userspace_tso
    }

    /// Creates the manager of this datapath's flow cache.
    ///
    /// # Errors
    /// The requested path, persisted under `state_dir`, cannot be read.
    pub fn manager(&self, state_dir: &Path) -> Result<Manager, StoreError> {
        Manager::new(self.flow_cache.clone(), self.netdev, &self.reason, state_dir)
    }
}
