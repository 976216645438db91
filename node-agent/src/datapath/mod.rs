//! Which datapath and attach mode this node uses, and why.

mod choose;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::attach::{Attach, OVS_ONLY_GROUP};
use crate::bpf::Programs;
use crate::flow_cache::pressure_cache::PressureCache;
use crate::flow_cache::{FlowCache, Manager, StoreError};

pub use choose::{choose, options, timing};

/// What was chosen at start.
#[derive(Debug, Clone)]
pub struct Datapath {
    /// How pods are attached from now on.
    pub attach: Attach,
    /// OVS's userspace datapath, which reads its ports through packet sockets.
    pub netdev: bool,
    /// OVS completes checksums and segments itself (`userspace-tso-enable`).
    pub userspace_tso: bool,
    /// The eBPF programs; `None` for OVS alone. Calls may block for some milliseconds.
    pub programs: Option<Arc<Mutex<Programs>>>,
    /// The flow cache; `None` for OVS alone.
    pub flow_cache: Option<Arc<dyn FlowCache>>,
    /// How full the flow cache's maps are, for all who show it: reading it walks them.
    pub pressure: PressureCache,
    /// Why it is so, for status.
    pub reason: String,
}

impl Datapath {
    /// OVS alone, because of `reason`.
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

    /// Whether a pod must complete its checksums itself: a packet socket on the host end would read them unfinished.
    pub fn pod_completes_checksums(&self) -> bool {
        self.netdev && self.attach == Attach::Direct && !self.userspace_tso
    }

    /// The manager of this datapath's flow cache.
    ///
    /// # Errors
    /// The path that was set for the node, kept under `state_dir`, cannot be read.
    pub fn manager(&self, state_dir: &Path) -> Result<Manager, StoreError> {
        Manager::new(self.flow_cache.clone(), self.netdev, &self.reason, state_dir)
    }
}
