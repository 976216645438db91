//! User side of the eBPF programs: loads them, attaches them to pod veths, shims and the uplink, pins maps and links, and reads
//! counters.
//!
//! The only user of aya. The programs are in package `ebpf`; attachment points and persistence are described in
//! `docs/datapath.md`.
//!
//! Invariant: the bpffs directory holds the whole state. `endpoints/<id>/<program>-<ifindex>` and
//! `uplink/<program>-<ifindex>` record what is attached, and `xdp/` what is attached in front of the kernel; `v<layout>/` holds the pinned maps. A [`Programs`] holds nothing that a later
//! agent could not read back from there, so the agent may be killed between any two steps.
//!
//! Interface indexes are those of the network namespace of the calling thread.

mod cache;
mod clock;
mod config;
mod control;
mod dry_run;
mod ended;
mod error;
mod flows;
mod host;
mod links;
mod load;
mod log;
mod object;
mod physical;
mod pins;
mod ports;
mod probe;
mod remotes;
mod scopes;
mod second_uplink;
mod service_cache;
mod shape;
mod slots;
mod slow_services;
mod stats;
mod sweep;
mod teardown;
mod xdp;
mod xdp_run;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

pub use cache::PinnedCache;
pub use dry_run::{Given, Passed, Verdict};
pub use ebpf::{
    Reason,
    layout::flow::AGREEING,
    layout::maps::{Count, PortCounters, TunnelCounters, TunnelKey},
};
pub use error::{Error, Failures};
pub use links::xdp::Refusal;
pub use load::Options;
pub use log::Log;
pub(crate) use probe::on_bpffs;
pub use probe::{Capabilities, Unsupported, probe};
pub use xdp::{XdpState, XdpWanted};

use crate::flow_cache::GatewayEnd;
use pins::Pins;
pub(crate) use pins::layout;
use slots::Slots;

/// Attach mode of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The interface itself is the OVS port (kernel datapath).
    Direct,
    /// A second veth pair, the shim, is between the interface and OVS (userspace datapath).
    Interposed {
        /// Index of the agent end of the shim.
        agent_end: u32,
        /// Index of the OVS end of the shim, the OVS port.
        ovs_end: u32,
    },
}

impl Mode {
    /// Mode of a port with this shim (agent end, OVS end); direct without one.
    pub fn of_shim(ends: Option<(u32, u32)>) -> Self {
        ends.map_or(Self::Direct, |(agent_end, ovs_end)| Self::Interposed { agent_end, ovs_end })
    }
}

/// Desired configuration of a pod's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Id of the pod's interface ([`crate::attach::interface_id`]): letters, digits, `-` and `_`.
    pub id: String,
    /// Index of the host end of the pod's veth.
    pub host_ifindex: u32,
    /// How the programs are attached, with the shim's ends.
    pub mode: Mode,
    /// Addresses bound to the port: at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// MAC bound to the port.
    pub mac: [u8; 6],
    /// Another program wants the `ingress` qdisc of the host end, whose place `clsact` would take. In direct mode the programs are
    /// attached by TCX where the kernel has it, so that both can coexist. Otherwise the kernel rejects the other qdisc, which is better
    /// than a rate limit that no packet passes: in interposed mode all packets leave the host end before they reach that qdisc.
    pub shares_ingress: bool,
}

/// A port by which the node itself is connected to a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePort {
    /// The gateway bridge's own port.
    Bridge,
    /// The management port.
    Management,
    /// The own port of the second uplink's bridge, which always uses the slow path.
    SecondBridge,
}

/// State of a pod's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Id of the pod's interface ([`crate::attach::interface_id`]).
    pub id: String,
    /// Index of the host end of the pod's veth.
    pub host_ifindex: u32,
    /// How the programs are attached, with the shim's ends.
    pub mode: Mode,
    /// IPv4 address bound to the port.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address bound to the port.
    pub ipv6: Option<Ipv6Addr>,
    /// MAC bound to the port.
    pub mac: [u8; 6],
    /// Whether every link that the mode needs is pinned and attached to an interface that exists.
    pub alive: bool,
}

/// Cached state of a port.
#[derive(Clone, Debug)]
struct Attached {
    host_ifindex: u32,
    mode: Mode,
    slot: u32,
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
    mac: [u8; 6],
    /// The port uses the fast path.
    fast: bool,
}

/// The loaded programs and maps of a node. Exists once; dropping it does not detach programs.
pub struct Programs {
    pins: Pins,
    ebpf: aya::Ebpf,
    endpoints: BTreeMap<String, Attached>,
    uplink: Option<(u32, Mode)>,
    /// Interfaces by which the node itself is connected to the bridges.
    host: BTreeMap<u32, NodePort>,
    /// Interfaces that lead to physical networks.
    physical: BTreeMap<u32, physical::Physical>,
    second_uplink: Option<second_uplink::SecondUplink>,
    /// What the fast path needs for the node's own traffic and that with the outside; `None`: it goes through OVS.
    gateway: Option<GatewayEnd>,
    uplink_via: links::Via,
    /// Whether the XDP program is wanted, and whether it is attached.
    xdp_wanted: XdpWanted,
    xdp: XdpState,
    slots: Slots,
    /// Counters at the last call of [`Programs::prune_tunnels`].
    tunnels_before: BTreeMap<TunnelKey, TunnelCounters>,
    /// Slots of the tunnels removed by that call. No program uses them any more by the next call.
    tunnels_idle: Vec<u32>,
    control: control::Control,
    /// Length of a tick, the unit of times in maps.
    tick: clock::Tick,
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Programs")
            .field("dir", &self.pins.dir())
            .field("endpoints", &self.endpoints.len())
            .field("uplink", &self.uplink)
            .finish_non_exhaustive()
    }
}

impl Programs {
    /// Whether this machine can run the datapath with its pins under `dir`, see [`probe()`].
    ///
    /// # Errors
    /// The first thing that is missing, with what would help.
    pub fn probe(dir: &std::path::Path) -> Result<Capabilities, Unsupported> {
        probe(dir)
    }

    /// Directory of the pins.
    pub fn dir(&self) -> PathBuf {
        self.pins.dir().to_path_buf()
    }
}

/// The peer of a tunnel as an address.
pub fn tunnel_remote(key: &TunnelKey) -> IpAddr {
    stats::remote(key)
}
