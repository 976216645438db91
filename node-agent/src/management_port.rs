//! The management port `ovn-k8s-mp0`: the node's own leg on its pods' switch. Through it the node reaches pods, and traffic
//! for backends on this node only.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context;
use api::{MacAddr, addr, ovn_name};
use ipnet::{IpNet, Ipv4Net};

use crate::gateway::bridge::{self, InternalPort};
use crate::gateway::host;
use crate::link::{Netlink, Route};
use crate::ovs::Ovs;

/// What the management port depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagementPort {
    /// Name of the Node object.
    pub node: String,
    /// The node's pod range.
    pub subnet: Ipv4Net,
    /// All pods' ranges.
    pub cluster_subnets: Vec<Ipv4Net>,
    /// Service ranges.
    pub service_cidrs: Vec<Ipv4Net>,
    /// The masquerade address for local-policy services (`.3`).
    pub local_service: Ipv4Addr,
    /// MTU in bytes.
    pub mtu: u32,
}

impl ManagementPort {
    /// Interface name.
    pub const NAME: &str = ovn_name::MANAGEMENT_INTERFACE;

    /// The node's address among its pods: the second of the range.
    pub fn address(&self) -> anyhow::Result<Ipv4Addr> {
        self.host_address(2)
    }

    /// The next hop: the first address of the range, the cluster router's.
    pub fn next_hop(&self) -> anyhow::Result<Ipv4Addr> {
        self.host_address(1)
    }

    fn host_address(&self, n: u32) -> anyhow::Result<Ipv4Addr> {
        match addr::nth(&IpNet::V4(self.subnet), n) {
            Some(IpAddr::V4(ip)) => Ok(ip),
            _ => anyhow::bail!(
                "node {}: pod range {} is too small; it needs at least 4 addresses",
                self.node,
                self.subnet
            ),
        }
    }

    /// Makes the port and gives it its address, routes, neighbour and settings. Changes only what differs.
    pub async fn ensure(&self, ovs: &Ovs, netlink: &Netlink) -> anyhow::Result<()> {
        let address = self.address()?;
        let spec = InternalPort {
            name: Self::NAME,
            iface_id: &ovn_name::management_port(&self.node),
            mac: MacAddr::from_ipv4(address),
            mtu: self.mtu,
        };
        bridge::ensure_internal_port(ovs, &spec).await?;
        let link = netlink.get(Self::NAME).await?;
        if link.mac != Some(spec.mac) {
            netlink.set_mac(link.index, Self::NAME, spec.mac).await?;
        }
        if link.mtu != self.mtu {
            netlink.set_mtu(link.index, Self::NAME, self.mtu).await?;
        }
        if !link.up {
            netlink.set_up(link.index, Self::NAME).await?;
        }
        host::ensure_sysctl(Self::NAME, "forwarding", "1")?;
        // Answers may come from an interface other than the one by which the node would send there.
        host::ensure_sysctl(Self::NAME, "rp_filter", "2")?;
        self.addresses(netlink, link.index, address).await?;
        let next_hop = self.next_hop()?;
        host::ensure_neighbour(netlink, link.index, Self::NAME, next_hop).await?;
        let via = |dest| Route::via(dest, IpAddr::V4(next_hop), link.index);
        let mut routes: Vec<Route> =
            self.cluster_subnets.iter().map(|net| via(IpNet::V4(net.trunc()))).collect();
        routes.push(via(host::host_net(self.local_service)));
        for cidr in &self.service_cidrs {
            routes.push(Route { table: host::LOCAL_POLICY_TABLE, ..via(IpNet::V4(cidr.trunc())) });
        }
        host::ensure_routes(netlink, Self::NAME, &routes).await?;
        host::ensure_rule(netlink).await
    }

    async fn addresses(&self, netlink: &Netlink, index: u32, address: Ipv4Addr) -> anyhow::Result<()> {
        let wanted = IpNet::V4(Ipv4Net::new(address, self.subnet.prefix_len())?);
        let there = netlink.addresses(index, Self::NAME).await?;
        for old in there.iter().filter(|a| matches!(a, IpNet::V4(_)) && **a != wanted) {
            netlink.delete_address(index, Self::NAME, *old).await?;
        }
        if !there.contains(&wanted) {
            netlink.replace_address(index, Self::NAME, wanted).await?;
        }
        Ok(())
    }

    /// Waits until OVN has bound the port and its flows are in place. The error says what OVS knows of it.
    pub async fn wait_installed(ovs: &Ovs, patience: Duration) -> anyhow::Result<()> {
        let installed = |ovs: &Ovs| {
            let row = ovs.interface(Self::NAME)?;
            (row.external_ids.get("ovn-installed").map(String::as_str) == Some("true")).then_some(())
        };
        ovs.wait_for(patience, installed).await.with_context(|| {
            format!("{} was not bound by OVN within {patience:?}; is ovn-controller running, and the node's switch in NB?", Self::NAME)
        })
    }

    /// Removes the port and the rule that leads to it.
    pub async fn remove(ovs: &Ovs, netlink: &Netlink) -> anyhow::Result<()> {
        bridge::remove_port(ovs, ovn_name::INTEGRATION_BRIDGE, Self::NAME).await?;
        host::remove_rule(netlink).await
    }
}
