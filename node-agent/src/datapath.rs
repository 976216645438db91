//! Which path this node's packets take, how pods are attached to OVS for it, and why.

use std::sync::Arc;

use api::MacAddr;
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::fast_path::FastPath;
use crate::metrics::DatapathCounts;

/// Link group of links whose packets only OVS shall see; one nft rule keeps them from the node's own stack.
pub const OVS_ONLY_GROUP: u32 = 0x5151;

/// How a pod reaches OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The pod's host veth is the OVS port.
    Direct,
    /// The OVS port is the far end of a second pair, wired by programs.
    Interposed,
}

/// One pod's connection, for the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The container (sandbox) id.
    pub id: String,
    /// Number of the pod's host veth.
    pub host: u32,
    /// Numbers of the shim's agent end and OVS end, when interposed.
    pub shim: Option<(u32, u32)>,
    /// The pod's addresses.
    pub addresses: Vec<IpNet>,
    /// The pod's MAC address.
    pub mac: MacAddr,
    /// Somebody else wants the `ingress` qdisc of the host veth.
    pub shares_ingress: bool,
}

/// The eBPF side. Calls may block for some milliseconds.
pub trait Programs: std::fmt::Debug + Send + Sync {
    /// Attaches programs for an endpoint; one that has them already is brought up to date.
    fn add(&self, endpoint: &Endpoint) -> Result<(), String>;
    /// Takes an endpoint's programs and entries away; one that is not there is fine.
    fn remove(&self, id: &str) -> Result<(), String>;
    /// Ids of the endpoints that have programs, and whether all of theirs are still attached.
    fn list(&self) -> Result<Vec<(String, bool)>, String>;
    /// How many interfaces have an entry in the maps, whoever wrote it.
    fn entries(&self) -> Result<usize, String>;
    /// What was counted so far.
    fn counts(&self) -> Result<DatapathCounts, String>;
}

/// What was chosen at start.
#[derive(Debug, Clone)]
pub struct Datapath {
    /// How pods are attached from now on.
    pub mode: Mode,
    /// OVS's userspace datapath, which reads its ports through packet sockets.
    pub netdev: bool,
    /// OVS completes checksums and segments itself (`userspace-tso-enable`).
    pub userspace_tso: bool,
    /// The eBPF side; `None` for OVS alone.
    pub programs: Option<Arc<dyn Programs>>,
    /// The flow cache; `None` for OVS alone.
    pub fast_path: Option<Arc<dyn FastPath>>,
    /// The same programs, for the uplink.
    pub uplink: Option<Arc<Mutex<crate::bpf::Datapath>>>,
    /// Why it is so, for status.
    pub reason: String,
}

impl Datapath {
    /// OVS alone.
    pub fn ovs_only(netdev: bool, userspace_tso: bool, reason: impl Into<String>) -> Self {
        Self {
            mode: Mode::Direct,
            netdev,
            userspace_tso,
            programs: None,
            fast_path: None,
            uplink: None,
            reason: reason.into(),
        }
    }

    /// `ebpf` or `ovs`.
    pub fn path(&self) -> &'static str {
        if self.programs.is_some() { "ebpf" } else { "ovs" }
    }

    /// Link group of a pod's host veth.
    pub fn host_group(&self) -> u32 {
        if self.netdev && self.mode == Mode::Direct { OVS_ONLY_GROUP } else { 0 }
    }

    /// Whether a pod must complete its checksums itself: a packet socket on the host end would read them unfinished.
    pub fn pod_completes_checksums(&self) -> bool {
        self.netdev && self.mode == Mode::Direct && !self.userspace_tso
    }
}
