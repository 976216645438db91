//! Where the inputs of the eligibility rules come from.

use crate::kernel::link::Netlink;
use crate::kube::pods::Pods;
use crate::ovs::{Ovs, mappings};

/// Inputs of the eligibility rules.
#[derive(Debug, Clone)]
pub(in crate::flow_cache) struct View {
    pub(in crate::flow_cache) ovs: Ovs,
    pub(in crate::flow_cache) pods: Pods,
    pub(in crate::flow_cache) netlink: Netlink,
    /// Name of the uplink.
    pub(in crate::flow_cache) uplink: String,
    /// MTU of pods' interfaces, in bytes.
    pub(in crate::flow_cache) pod_mtu: u32,
}

impl View {
    /// Name of the gateway bridge (`ovn-bridge-mappings`).
    pub(in crate::flow_cache) fn bridge(&self) -> Option<String> {
        let system = self.ovs.system()?;
        mappings::bridge_of(&system, api::ovn_name::PHYSICAL_NETWORK).map(str::to_owned)
    }

    /// Name of the second uplink's bridge.
    pub(in crate::flow_cache) fn second_bridge(&self) -> Option<String> {
        let system = self.ovs.system()?;
        mappings::bridge_of(&system, api::ovn_name::SECOND_PHYSICAL_NETWORK).map(str::to_owned)
    }

    /// Names of the bridges that lead to physical networks on which virtual networks can be.
    pub(in crate::flow_cache) fn physical_bridges(&self) -> Vec<String> {
        self.bridge()
            .map_or_else(Vec::new, |gateway| mappings::physical_networks(&self.ovs, &gateway).bridges)
    }
}
