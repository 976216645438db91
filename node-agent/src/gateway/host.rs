//! Host side of the gateway: masquerade address, routes to services and OVN, permanent neighbours, forwarding, and the policy rule
//! for services with internal traffic policy Local. Addresses and numbers are those of ovn-kubernetes.

use crate::kernel::sysctl;
use std::net::IpAddr;

use anyhow::Context as _;
use api::MacAddr;
use api::addr::Family;
use ipnet::IpNet;
use rtnetlink::IpVersion;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::nft::LOCAL_POLICY_MARK;
use crate::kernel::link::address::Neighbour;
use crate::kernel::link::{LinkError, Netlink, Route};

/// Priority of the rule that sends marked packets to [`LOCAL_POLICY_TABLE`].
pub const RULE_PRIORITY: u32 = 30;
/// Routing table of internal-policy Local services.
pub const LOCAL_POLICY_TABLE: u32 = 7;

/// Conntrack timeout of half-closed connections in seconds, as in kube-proxy (`conntrack.tcpCloseWaitTimeout`), for clients that
/// close and continue to read. The kernel's default is a minute.
const HALF_CLOSED: u32 = 3600;

/// Inputs for one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Gateway bridge.
    pub bridge: String,
    /// The node's address on it.
    pub node: IpAddr,
    /// Subnet of the masquerade addresses.
    pub masquerade: IpNet,
    /// `.1`: represents OVN for the host.
    pub ovn: IpAddr,
    /// `.2`: represents the host for OVN.
    pub host: IpAddr,
    /// `.4`: next hop that represents OVN.
    pub next_hop: IpAddr,
    /// Service ranges of the family.
    pub service_cidrs: Vec<IpNet>,
    /// MTU of pods in bytes; no packet to a service may be larger.
    pub mtu: u32,
}

impl HostConfig {
    fn address(&self) -> anyhow::Result<IpNet> {
        Ok(IpNet::new(self.host, self.masquerade.prefix_len())?)
    }
}

/// Ensures address, routes and neighbours of the bridge; writes only differences.
///
/// # Errors
/// The kernel rejects a change.
pub async fn ensure(netlink: &Netlink, config: &HostConfig) -> anyhow::Result<()> {
    let link = netlink.get(&config.bridge).await?;
    let name = link.name.as_str();
    forward(name, Family::of(config.node))?;
    sysctl::raise_netfilter("nf_conntrack_tcp_timeout_close_wait", HALF_CLOSED)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if let Err(error) = sysctl::raise_netfilter("nf_conntrack_max", connections(cores)) {
        // Allowed only in the initial network namespace.
        tracing::debug!(%error, "cannot set the size of the connection tracking table");
    }
    // Only routes to services name it as source. Otherwise the kernel would choose it for the node's own IPv6 connections to the outside.
    netlink.ensure_passive_address(link.index, name, config.address()?).await?;
    for ip in [config.ovn, config.next_hop] {
        ensure_neighbour(netlink, link.index, name, ip, MacAddr::from_ip(ip)).await?;
    }
    let mut wanted = vec![Route {
        dest: host_net(config.ovn),
        gateway: None,
        source: Some(config.node),
        ..Route::via(host_net(config.ovn), config.ovn, link.index)
    }];
    for cidr in &config.service_cidrs {
        wanted.push(Route {
            source: Some(config.host),
            mtu: Some(config.mtu),
            ..Route::via(cidr.trunc(), config.next_hop, link.index)
        });
    }
    ensure_routes(netlink, name, &wanted).await?;
    Ok(())
}

/// Minimum size of the connection tracking table, as in kube-proxy (`conntrack.maxPerCore`, `conntrack.min`).
fn connections(cores: usize) -> u32 {
    u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(32_768).max(131_072)
}

/// Enables forwarding of packets received on an interface.
///
/// # Errors
/// A sysctl of the interface cannot be read or written.
pub fn forward(interface: &str, family: Family) -> Result<(), LinkError> {
    if family == Family::V4 {
        return ensure_sysctl("ipv4", interface, "forwarding", "1");
    }
    ensure_sysctl("ipv6", interface, "disable_ipv6", "0")?;
    // With forwarding, the kernel ignores router advertisements unless `accept_ra` is 2, and a default route from an advertisement
    // would expire (Documentation/networking/ip-sysctl.rst, accept_ra).
    if sysctl::get_interface("ipv6", interface, "accept_ra")? == "1" {
        sysctl::change_interface("ipv6", interface, "accept_ra", "2")?;
    }
    // Before Linux 6.17 IPv6 is forwarded on all interfaces or on none.
    match ensure_sysctl("ipv6", interface, "force_forwarding", "1") {
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {
            keep_advertisements()?;
            ensure_sysctl("ipv6", "all", "forwarding", "1")
        }
        other => other,
    }
}

/// Before forwarding is enabled on all interfaces: makes those that accept advertisements continue to do so.
fn keep_advertisements() -> Result<(), LinkError> {
    for interface in sysctl::interfaces("ipv6")?.into_iter().filter(|name| name != "all") {
        if sysctl::get_interface("ipv6", &interface, "accept_ra").is_ok_and(|value| value == "1") {
            match sysctl::change_interface("ipv6", &interface, "accept_ra", "2") {
                // The interface was removed meanwhile.
                Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
    }
    Ok(())
}

/// Removes what [`ensure`] and [`ensure_rule`] added.
///
/// # Errors
/// The kernel rejects a request.
pub async fn remove(netlink: &Netlink, config: &HostConfig) -> anyhow::Result<()> {
    remove_rule(netlink).await?;
    let Some(link) = netlink.find(&config.bridge).await? else { return Ok(()) };
    let name = link.name.as_str();
    for ip in [config.ovn, config.next_hop] {
        netlink.delete_neighbour(link.index, name, ip).await?;
    }
    for route in netlink.routes(config.host.is_ipv6(), crate::kernel::link::route::MAIN_TABLE).await? {
        let to_ovn = route.gateway == Some(config.next_hop) || route.dest == host_net(config.ovn);
        if route.interface == link.index && to_ovn {
            netlink.delete_route(name, &route).await?;
        }
    }
    netlink.delete_address(link.index, name, config.address()?).await?;
    Ok(())
}

/// Adds missing routes, which replace other routes to the same destination.
///
/// # Errors
/// The kernel rejects a request.
pub async fn ensure_routes(netlink: &Netlink, name: &str, wanted: &[Route]) -> Result<(), LinkError> {
    for route in wanted {
        let there = netlink.routes(route.dest.addr().is_ipv6(), route.table).await?;
        let same = |r: &Route| {
            r.dest == route.dest
                && r.interface == route.interface
                && r.gateway == route.gateway
                && r.source == route.source
                && r.mtu == route.mtu
        };
        if !there.iter().any(same) {
            netlink.replace_route(name, route).await?;
        }
    }
    Ok(())
}

/// Adds a permanent neighbour, unless it exists.
///
/// # Errors
/// The kernel rejects a request.
pub async fn ensure_neighbour(
    netlink: &Netlink,
    index: u32,
    name: &str,
    ip: IpAddr,
    mac: MacAddr,
) -> Result<(), LinkError> {
    let neighbour = Neighbour { ip, mac };
    if netlink.permanent_neighbours(index, name).await?.contains(&neighbour) {
        return Ok(());
    }
    netlink.replace_neighbour(index, name, neighbour).await
}

/// Sets a sysctl of an interface and a family (`ipv4`, `ipv6`), unless it has the value.
///
/// # Errors
/// The sysctl cannot be read or written.
pub fn ensure_sysctl(family: &str, interface: &str, key: &'static str, value: &str) -> Result<(), LinkError> {
    if sysctl::get_interface(family, interface, key)? == value {
        return Ok(());
    }
    sysctl::change_interface(family, interface, key, value)
}

/// Adds the policy rule of a family for marked packets, unless it exists.
///
/// # Errors
/// The kernel rejects a request.
pub async fn ensure_rule(netlink: &Netlink, family: Family) -> anyhow::Result<()> {
    if find_rule(netlink, family).await?.is_some() {
        return Ok(());
    }
    let rule = netlink
        .raw()
        .rule()
        .add()
        .fw_mark(LOCAL_POLICY_MARK)
        .priority(RULE_PRIORITY)
        .table_id(LOCAL_POLICY_TABLE)
        .action(RuleAction::ToTable);
    let done = match family {
        Family::V4 => rule.v4().execute().await,
        Family::V6 => rule.v6().execute().await,
    };
    done.with_context(|| {
        format!("{} policy rule {RULE_PRIORITY} for mark {LOCAL_POLICY_MARK:#x}", family.name())
    })
}

/// Removes the policy rules for marked packets, of both families.
///
/// # Errors
/// The kernel rejects a request.
pub async fn remove_rule(netlink: &Netlink) -> anyhow::Result<()> {
    for family in [Family::V4, Family::V6] {
        if let Some(rule) = find_rule(netlink, family).await? {
            let what = || format!("remove {} policy rule {RULE_PRIORITY}", family.name());
            netlink.raw().rule().del(rule).execute().await.with_context(what)?;
        }
    }
    Ok(())
}

async fn find_rule(netlink: &Netlink, family: Family) -> anyhow::Result<Option<RuleMessage>> {
    let version = match family {
        Family::V4 => IpVersion::V4,
        Family::V6 => IpVersion::V6,
    };
    let list = || netlink.raw().rule().get(version.clone()).execute();
    let rules: Vec<RuleMessage> = netlink.listed(list).await.context("list policy rules")?;
    Ok(rules.into_iter().find(|rule| {
        rule.attributes.contains(&RuleAttribute::FwMark(LOCAL_POLICY_MARK))
            && rule.attributes.contains(&RuleAttribute::Priority(RULE_PRIORITY))
    }))
}

/// The prefix that holds one address.
pub fn host_net(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_connections_is_as_large_as_with_kube_proxy() {
        assert_eq!([1, 4, 8].map(connections), [131_072, 131_072, 262_144]);
    }
}
