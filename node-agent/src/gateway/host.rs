//! The node's own side of the gateway: masquerade address, routes to services and OVN, permanent neighbours, forwarding, and
//! the policy rule for internal-policy Local services. Addresses and numbers are those of ovn-kubernetes.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context as _;
use api::MacAddr;
use futures::TryStreamExt;
use ipnet::{IpNet, Ipv4Net};
use rtnetlink::IpVersion;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::nft::LOCAL_POLICY_MARK;
use crate::link::address::Neighbour;
use crate::link::{LinkError, Netlink, Route, sysctl};

/// Priority of the rule that sends marked packets to [`LOCAL_POLICY_TABLE`].
pub const RULE_PRIORITY: u32 = 30;
/// Routing table of internal-policy Local services.
pub const LOCAL_POLICY_TABLE: u32 = 7;

/// What the node's own side of the bridge depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Gateway bridge.
    pub bridge: String,
    /// The node's address on it.
    pub node: Ipv4Addr,
    /// Subnet of the masquerade addresses.
    pub masquerade: Ipv4Net,
    /// `.1`: OVN, seen from the node.
    pub ovn: Ipv4Addr,
    /// `.2`: the node, seen from OVN.
    pub host: Ipv4Addr,
    /// `.4`: next hop that stands for OVN.
    pub next_hop: Ipv4Addr,
    /// Service ranges.
    pub service_cidrs: Vec<Ipv4Net>,
    /// MTU of pods in bytes; no packet to a service may be larger.
    pub mtu: u32,
}

/// Brings the bridge's own address, routes and neighbours in line. Changes only what is missing.
pub async fn ensure(netlink: &Netlink, config: &HostConfig) -> anyhow::Result<()> {
    let link = netlink.get(&config.bridge).await?;
    let name = link.name.as_str();
    let address = IpNet::V4(Ipv4Net::new(config.host, config.masquerade.prefix_len())?);
    if !netlink.addresses(link.index, name).await?.contains(&address) {
        netlink.replace_address(link.index, name, address).await?;
    }
    for ip in [config.ovn, config.next_hop] {
        ensure_neighbour(netlink, link.index, name, ip).await?;
    }
    let mut wanted = vec![Route {
        dest: host_net(config.ovn),
        gateway: None,
        source: Some(IpAddr::V4(config.node)),
        ..Route::via(host_net(config.ovn), IpAddr::V4(config.ovn), link.index)
    }];
    for cidr in &config.service_cidrs {
        wanted.push(Route {
            source: Some(IpAddr::V4(config.host)),
            mtu: Some(config.mtu),
            ..Route::via(IpNet::V4(cidr.trunc()), IpAddr::V4(config.next_hop), link.index)
        });
    }
    ensure_routes(netlink, name, &wanted).await?;
    ensure_sysctl(name, "forwarding", "1")?;
    Ok(())
}

/// Removes what [`ensure`] and [`ensure_rule`] added.
pub async fn remove(netlink: &Netlink, config: &HostConfig) -> anyhow::Result<()> {
    remove_rule(netlink).await?;
    let Some(link) = netlink.find(&config.bridge).await? else { return Ok(()) };
    let name = link.name.as_str();
    for ip in [config.ovn, config.next_hop] {
        netlink.delete_neighbour(link.index, name, IpAddr::V4(ip)).await?;
    }
    for route in netlink.routes(false, crate::link::route::MAIN_TABLE).await? {
        let to_ovn = route.gateway == Some(IpAddr::V4(config.next_hop)) || route.dest == host_net(config.ovn);
        if route.interface == link.index && to_ovn {
            netlink.delete_route(name, &route).await?;
        }
    }
    let address = IpNet::V4(Ipv4Net::new(config.host, config.masquerade.prefix_len())?);
    netlink.delete_address(link.index, name, address).await?;
    Ok(())
}

/// Adds the routes that are not there, in place of others to the same destination.
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

/// Sets the permanent neighbour whose MAC follows from its address, unless it is there.
pub async fn ensure_neighbour(
    netlink: &Netlink,
    index: u32,
    name: &str,
    ip: Ipv4Addr,
) -> Result<(), LinkError> {
    let neighbour = Neighbour { ip: IpAddr::V4(ip), mac: MacAddr::from_ipv4(ip) };
    if netlink.permanent_neighbours(index, name).await?.contains(&neighbour) {
        return Ok(());
    }
    netlink.replace_neighbour(index, name, neighbour).await
}

/// Sets an IPv4 setting of an interface, unless it has the value.
pub fn ensure_sysctl(interface: &str, key: &'static str, value: &str) -> Result<(), LinkError> {
    if sysctl::get_interface("ipv4", interface, key)? == value {
        return Ok(());
    }
    sysctl::set_interface("ipv4", interface, key, value)
}

/// Adds the rule for marked packets, unless it is there.
pub async fn ensure_rule(netlink: &Netlink) -> anyhow::Result<()> {
    if find_rule(netlink).await?.is_some() {
        return Ok(());
    }
    let rule = netlink
        .raw()
        .rule()
        .add()
        .v4()
        .fw_mark(LOCAL_POLICY_MARK)
        .priority(RULE_PRIORITY)
        .table_id(LOCAL_POLICY_TABLE)
        .action(RuleAction::ToTable);
    rule.execute()
        .await
        .with_context(|| format!("policy rule {RULE_PRIORITY} for mark {LOCAL_POLICY_MARK:#x}"))
}

/// Removes the rule for marked packets.
pub async fn remove_rule(netlink: &Netlink) -> anyhow::Result<()> {
    if let Some(rule) = find_rule(netlink).await? {
        let what = || format!("remove policy rule {RULE_PRIORITY}");
        netlink.raw().rule().del(rule).execute().await.with_context(what)?;
    }
    Ok(())
}

async fn find_rule(netlink: &Netlink) -> anyhow::Result<Option<RuleMessage>> {
    let rules = netlink.raw().rule().get(IpVersion::V4).execute();
    let rules: Vec<RuleMessage> = rules.try_collect().await.context("list policy rules")?;
    Ok(rules.into_iter().find(|rule| {
        rule.attributes.contains(&RuleAttribute::FwMark(LOCAL_POLICY_MARK))
            && rule.attributes.contains(&RuleAttribute::Priority(RULE_PRIORITY))
    }))
}

/// The prefix that holds one address.
pub fn host_net(ip: Ipv4Addr) -> IpNet {
    IpNet::from(IpAddr::V4(ip))
}
