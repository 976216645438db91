//! Management port `ovn-k8s-mp0`: interface of the host on the node's logical switch. The host reaches pods through it, and backends
//! of services with traffic policy Local.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use api::addr::{self, Family};
use api::{MacAddr, ovn_name};
use ipnet::IpNet;

use crate::gateway::bridge::{self, InternalPort};
use crate::gateway::host;
use crate::kernel::link::{Netlink, Route};
use crate::ovs::Ovs;

/// Inputs of the management port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagementPort {
    /// Name of the Node object.
    pub node: String,
    /// The node's pod ranges, in the annotation's order: MAC addresses follow from the first.
    pub subnets: Vec<IpNet>,
    /// Pod ranges of the cluster.
    pub cluster_subnets: Vec<IpNet>,
    /// Service ranges.
    pub service_cidrs: Vec<IpNet>,
    /// Service ranges that the node reaches through this port, as its gateway lacks their address family.
    pub services_without_gateway: Vec<IpNet>,
    /// The masquerade addresses for local-policy services (`.3`).
    pub local_services: Vec<IpAddr>,
    /// MTU in bytes.
    pub mtu: u32,
}

impl ManagementPort {
    /// Interface name.
    pub const NAME: &str = ovn_name::MANAGEMENT_INTERFACE;

    /// The node's addresses among its pods: the second of each range.
    ///
    /// # Errors
    /// A pod range is too small.
    pub fn addresses(&self) -> anyhow::Result<Vec<IpAddr>> {
        self.subnets.iter().map(|subnet| self.host_address(subnet, 2)).collect()
    }

    fn host_address(&self, subnet: &IpNet, n: u32) -> anyhow::Result<IpAddr> {
        addr::nth(subnet, n).with_context(|| {
            format!("node {}: pod subnet {subnet} is too small; at least 4 addresses are needed", self.node)
        })
    }

    /// MAC derived from the `n`-th address of the first range: the port's own (2), the cluster router's (1).
    fn mac(&self, n: u32) -> anyhow::Result<MacAddr> {
        let first = self.subnets.first().with_context(|| format!("node {} has no pod subnet", self.node))?;
        Ok(MacAddr::from_ip(self.host_address(first, n)?))
    }

    /// Ensures the port with its addresses, routes, neighbours and settings; writes only differences.
    ///
    /// # Errors
    /// The node has no pod range or one that is too small, OVS does not create the port, or the kernel rejects a change.
    pub async fn ensure(&self, ovs: &Ovs, netlink: &Netlink) -> anyhow::Result<()> {
        let spec = InternalPort {
            name: Self::NAME,
            iface_id: &ovn_name::management_port(&self.node),
            mac: self.mac(2)?,
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
        // Loose mode: a reply may arrive here although the node would reach its source by another interface.
        host::ensure_sysctl("ipv4", Self::NAME, "rp_filter", "2")?;
        for subnet in &self.subnets {
            if subnet.addr().is_ipv6() {
                // OVN's routers send no advertisements there; those of others must be ignored.
                host::ensure_sysctl("ipv6", Self::NAME, "accept_ra", "0")?;
            }
            host::forward(Self::NAME, Family::of_net(subnet))?;
            let address = IpNet::new(self.host_address(subnet, 2)?, subnet.prefix_len())?;
            Self::only_address(netlink, link.index, address).await?;
            self.ways(netlink, link.index, subnet).await?;
        }
        Ok(())
    }

    /// Makes `wanted` the only address of its family. Link-local addresses, which the kernel adds, stay.
    async fn only_address(netlink: &Netlink, index: u32, wanted: IpNet) -> anyhow::Result<()> {
        let there = netlink.addresses(index, Self::NAME).await?;
        let stale =
            |a: &&IpNet| Family::of_net(a) == Family::of_net(&wanted) && **a != wanted && !is_link_local(a);
        for old in there.iter().filter(stale) {
            netlink.delete_address(index, Self::NAME, *old).await?;
        }
        if !there.contains(&wanted) {
            netlink.replace_address(index, Self::NAME, wanted).await?;
        }
        Ok(())
    }

    /// Ensures neighbour, routes and policy rule of one family.
    async fn ways(&self, netlink: &Netlink, index: u32, subnet: &IpNet) -> anyhow::Result<()> {
        let family = Family::of_net(subnet);
        let next_hop = self.host_address(subnet, 1)?;
        host::ensure_neighbour(netlink, index, Self::NAME, next_hop, self.mac(1)?).await?;
        let via = |dest| Route::via(dest, next_hop, index);
        let of_family = |net: &&IpNet| Family::of_net(net) == family;
        let mut routes: Vec<Route> =
            self.cluster_subnets.iter().filter(of_family).map(|net| via(net.trunc())).collect();
        let local = self.local_services.iter().filter(|ip| Family::of(**ip) == family);
        routes.extend(local.map(|ip| via(host::host_net(*ip))));
        routes.extend(self.services_without_gateway.iter().filter(of_family).map(|net| via(net.trunc())));
        for cidr in self.service_cidrs.iter().filter(of_family) {
            routes.push(Route { table: host::LOCAL_POLICY_TABLE, ..via(cidr.trunc()) });
        }
        host::ensure_routes(netlink, Self::NAME, &routes).await?;
        host::ensure_rule(netlink, family).await
    }

    /// Waits until ovn-controller has bound the port and installed its flows.
    ///
    /// # Errors
    /// OVN does not bind the port within `patience`.
    pub async fn wait_installed(ovs: &Ovs, patience: Duration) -> anyhow::Result<()> {
        let installed = |ovs: &Ovs| {
            let row = ovs.interface(Self::NAME)?;
            (row.external_ids.get("ovn-installed").map(String::as_str) == Some("true")).then_some(())
        };
        ovs.wait_for(patience, installed).await.with_context(|| {
            format!("management port {} was not bound by OVN within {patience:?}; is ovn-controller running, and does the node's logical switch exist in NB?", Self::NAME)
        })
    }

    /// Removes the port and the policy rule for it.
    ///
    /// # Errors
    /// OVS or the kernel rejects the removal.
    pub async fn remove(ovs: &Ovs, netlink: &Netlink) -> anyhow::Result<()> {
        bridge::remove_port(ovs, ovn_name::INTEGRATION_BRIDGE, Self::NAME).await?;
        host::remove_rule(netlink).await
    }
}

fn is_link_local(net: &IpNet) -> bool {
    match net {
        // The kernel adds no IPv4 link-local address, so one that is there is removed like others.
        IpNet::V4(_) => false,
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    }
}
