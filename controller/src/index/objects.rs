//! The plain structs that the index holds: what planning needs of a Kubernetes object, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::MacAddr;
use api::annotation::GatewayConfig;
use api::host_port::Claim;
use ipnet::IpNet;

use super::external_gateways::ExternalGateways;
use super::network::Attached;
use crate::config::Config;
use api::NamespacedName;

/// A node as far as it is known. The gateway half is missing until the node agent has written its annotations.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// The node's number, from 2. The join address is derived from it.
    pub id: u32,
    /// Pod ranges, one for each family.
    pub subnets: Vec<IpNet>,
    /// The node's `InternalIP`s.
    pub addresses: Vec<IpAddr>,
    /// OVS `system-id`, once the agent has reported it.
    pub chassis: Option<String>,
    /// Gateway configuration, once the agent has reported it.
    pub gateway: Option<GatewayConfig>,
    /// The agent has reported a gateway configuration that cannot be read, and never one that can: the gateway's rows in the
    /// database stay as they are.
    pub gateway_unknown: bool,
    /// All addresses of the host, with prefix length.
    pub host_cidrs: Vec<IpNet>,
    /// The node's OVS segments packets in the userspace datapath ([`api::annotation::USERSPACE_TSO`]).
    pub userspace_tso: bool,
    /// Labels of the Node.
    pub labels: BTreeMap<String, String>,
}

impl Node {
    /// The limit for packets towards the node's pods, in bytes; none where OVS would take a packet that is still to be segmented
    /// for one that is too long.
    pub fn gateway_mtu(&self, config: &Config) -> Option<u16> {
        (!self.userspace_tso).then_some(config.mtu)
    }

    /// Every address by which the node itself is reached.
    pub fn all_addresses(&self) -> BTreeSet<IpAddr> {
        let gateway = self.gateway.iter().flat_map(|gateway| &gateway.ip_addresses);
        let own = gateway.chain(&self.host_cidrs).map(IpNet::addr);
        own.chain(self.addresses.iter().copied()).collect()
    }

    /// Names of the ports of its external switches that connect it to physical networks.
    pub fn uplinks(&self) -> impl Iterator<Item = &str> {
        let second = self.gateway.iter().filter_map(|gateway| gateway.second_uplink());
        let first = self.gateway.iter().map(|gateway| gateway.interface_id.as_str());
        first.chain(second.map(|second| second.interface_id))
    }

    /// The zone that the node is in (label `topology.kubernetes.io/zone`).
    pub fn zone(&self) -> Option<&str> {
        self.labels.get(api::annotation::TOPOLOGY_ZONE).map(String::as_str)
    }
}

/// A pod that is bound to a node and not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Name of the pod.
    pub name: NamespacedName,
    /// `metadata.uid`.
    pub uid: String,
    /// Creation time, seconds since the epoch.
    pub created: i64,
    /// Name of the node that the pod is bound to.
    pub node: String,
    /// The pod shares the network namespace of its node (`spec.hostNetwork`).
    pub host_network: bool,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Allocated addresses with the prefix length of the node's range; empty until allocated, and for host-network pods.
    pub addresses: Vec<IpNet>,
    /// Derived from the first address.
    pub mac: Option<MacAddr>,
    /// Interfaces on other networks than the cluster's.
    pub attachments: Vec<Attached>,
    /// `status.podIPs` (of a host-network pod: the node's).
    pub status_ips: Vec<IpAddr>,
    /// Ports that the pod's containers declare.
    pub ports: Vec<ContainerPort>,
}

impl Pod {
    /// The node's ports that the pod requests. A host-network pod listens on them itself.
    pub fn host_ports(&self) -> impl Iterator<Item = Claim> {
        let claims = self.ports.iter().filter_map(|port| {
            Some(Claim {
                pod: self.name.to_string(),
                created: self.created,
                protocol: port.protocol,
                host_port: port.host_port?,
                host_ip: port.host_ip,
                addresses: self.addresses.iter().map(IpNet::addr).collect(),
                container_port: port.port,
            })
        });
        claims.filter(|_| !self.host_network)
    }
}

/// A declared container port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Name of the port, which is unique in the pod.
    pub name: Option<String>,
    /// Port in the container.
    pub port: u16,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Port of the node that leads to the container's.
    pub host_port: Option<u16>,
    /// Address of the node on which the host port is open; `None`: all of them.
    pub host_ip: Option<IpAddr>,
}

pub use api::Protocol;

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: String,
    /// Labels of the Namespace.
    pub labels: BTreeMap<String, String>,
    /// The way of its pods to the outside.
    pub external_gateways: ExternalGateways,
}
