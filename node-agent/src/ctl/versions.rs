//! Which versions work together on this node.

use super::wire::Versions;
use crate::bpf;
use crate::node::Node;

/// Reads them. The kernel's release is that of the running kernel.
pub(super) fn versions(node: &Node) -> Versions {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let kernel = kernel.map_or_else(|error| format!("unknown ({error})"), |text| text.trim().to_owned());
    Versions {
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        programs: bpf::Datapath::fingerprint(),
        map_layout: ebpf::maps::LAYOUT,
        kernel,
        ovs: node.ovs.system().and_then(|row| row.ovs_version.clone()),
    }
}
