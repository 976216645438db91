//! Host ports of this node's pods: served from outside by OVN (flows on the bridge) and for the node's own connections by a table
//! of nftables.

pub mod conntrack;
pub mod flows;
pub mod nft;

use std::collections::BTreeSet;

use api::Protocol;

use crate::kube::host_ports::HostPorts;

/// The UDP ports.
pub fn udp(ports: &HostPorts) -> BTreeSet<u16> {
    ports.keys().filter(|place| place.protocol == Protocol::Udp).map(|place| place.port).collect()
}
