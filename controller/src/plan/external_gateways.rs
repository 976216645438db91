//! External gateways of namespaces. Each of their pods has a route by its source address to each gateway on its node's gateway router, by
//! the second uplink if there is one. Answers come back by the gateway that a connection came from (`ecmp_symmetric_reply`).
//!
//! In gateway mode local, where pods leave by the node's management port, a policy of the cluster router sends those pods' packets to
//! the gateway router.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::addr::{self, Family};
use api::annotation::GatewayMode;
use api::ovn_name;
use ipnet::IpNet;
use ovsdb_client::Datum;

use super::columns::{map, owner_ids};
use super::uplink::Uplink;
use super::{DesiredRow, Item, RowKey, Table, gateway, key};
use crate::config::{Config, same_family};
use crate::index::{ExternalGateways, Index, Node, Pod};

/// Key of `external_ids` that marks these rows as ours: ovn-kubernetes has rows of the same columns for AdminPolicyBasedExternalRoutes.
/// Its value is the namespace of a route, and the node of other rows.
pub const MARK: &str = "slipstream.dev/external-gateways";
/// Owner type of the address sets.
pub const OWNER_TYPE: &str = "ExternalGateways";
/// Priority of the policies of mode local, which is that of ovn-kubernetes. Below the ones for nodes' own addresses.
const LOCAL_PRIORITY: i64 = 501;

/// The addresses of a pod with the gateways that each has a route to.
fn pairs<'a>(
    pod: &'a Pod,
    gateways: &'a ExternalGateways,
    uplink: &'a Uplink<'_>,
) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
    let usable = |gateway: IpAddr| uplink.addresses.iter().any(|net| same_family(net.addr(), gateway));
    pod.addresses.iter().map(IpNet::addr).flat_map(move |ip| {
        let reached = gateways.ips.iter().copied().filter(move |gateway| same_family(*gateway, ip));
        reached.filter(move |gateway| usable(*gateway)).map(move |gateway| (ip, gateway))
    })
}

/// The routes of a pod that has a port.
pub fn pod_items(index: &Index, pod: &Pod, config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    let node = index.nodes.get(&pod.node);
    let (Some(gateways), Some(uplink)) =
        (index.external_gateways(&pod.name.namespace), node.and_then(Uplink::to_external_gateways))
    else {
        return items;
    };
    let router = ovn_name::gateway_router(&pod.node);
    let port = uplink.router_port.as_str();
    let mut families = BTreeMap::new();
    for (ip, gateway) in pairs(pod, gateways, &uplink) {
        families.insert(Family::of(ip), ip);
        let (prefix, nexthop) = (IpNet::from(ip).to_string(), gateway.to_string());
        let row = gateway::route(&router, &prefix, &nexthop, Some("src-ip"), Some(port), &mut items)
            .with("options", map([("ecmp_symmetric_reply", "true")]))
            .with("external_ids", map([(MARK, pod.name.namespace.as_str())]));
        if gateways.bfd && config.features.bfd {
            let session = key::bfd(port, gateway);
            items.push(Item::link(&row.key, "bfd", &session));
            items.push(
                DesiredRow::new(session)
                    .with("logical_port", port)
                    .with("dst_ip", nexthop)
                    .with("external_ids", map([(MARK, pod.node.as_str())]))
                    .into(),
            );
        }
        items.push(row.into());
    }
    for ip in families.into_values() {
        items.extend(to_host(&router, &pod.node, ip, config).into_iter().flatten());
    }
    items
}

/// The route back to the node's own stack, whose connections to services come from its masquerade address: as long as the routes of pods by
/// their source, of which a route by destination goes first, so that answers of such pods do not go to their gateways.
fn to_host(router: &str, node: &str, ip: IpAddr, config: &Config) -> Option<Vec<Item>> {
    let masquerade = config.masquerade(ip)?;
    let (prefix, nexthop) = (IpNet::from(masquerade.host).to_string(), masquerade.next_hop.to_string());
    let port = ovn_name::router_to_external(node);
    let mut items = Vec::new();
    let row = gateway::route(router, &prefix, &nexthop, None, Some(&port), &mut items);
    items.push(row.with("external_ids", map([(MARK, node)])).into());
    Some(items)
}

/// The policies of a node in mode local whose pods have external gateways, and the sets of these pods' addresses.
pub fn node_items(index: &Index, node: &Node, config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    let is_local = node.gateway.as_ref().is_some_and(|gateway| gateway.mode == GatewayMode::Local);
    let Some(uplink) = Uplink::to_external_gateways(node).filter(|_| is_local) else { return items };
    let mut sources: BTreeMap<Family, BTreeSet<IpAddr>> = BTreeMap::new();
    for pod in index.pods_of_node(&node.name).filter_map(|name| index.pods.get(name)) {
        let Some(gateways) = index.external_gateways(&pod.name.namespace) else { continue };
        for (ip, _) in pairs(pod, gateways, &uplink) {
            sources.entry(Family::of(ip)).or_default().insert(ip);
        }
    }
    for ips in sources.values() {
        items.extend(local_policy(node, ips, config).into_iter().flatten());
    }
    items
}

/// The policy for these addresses, which are of one family, with their set.
fn local_policy(node: &Node, ips: &BTreeSet<IpAddr>, config: &Config) -> Option<Vec<Item>> {
    let any = *ips.first()?;
    let gateway_router = addr::join_of(&config.join(any)?, node.id)?;
    let (short, family) = if any.is_ipv4() { ("v4", "ip4") } else { ("v6", "ip6") };
    let id = ovn_name::owner_id(OWNER_TYPE, &[&node.name, short]);
    let set = RowKey::new(Table::AddressSet, id.clone());
    let mut matching = format!(
        "inport == \"{}\" && {family}.src == ${}",
        ovn_name::router_to_switch(&node.name),
        set.hashed_name()
    );
    for subnet in config.cluster_subnets.iter().filter(|subnet| same_family(subnet.cidr.addr(), any)) {
        matching.push_str(&format!(" && {family}.dst != {}", subnet.cidr));
    }
    let policy = key::policy(ovn_name::CLUSTER_ROUTER, LOCAL_PRIORITY, &matching);
    let router = RowKey::new(Table::LogicalRouter, ovn_name::CLUSTER_ROUTER);
    let mut items = vec![
        DesiredRow::new(set.clone())
            .with("name", set.hashed_name())
            .with("external_ids", owner_ids(&id, OWNER_TYPE, &node.name, &[("ip-family", short)]))
            .into(),
        Item::link(&router, "policies", &policy),
        DesiredRow::new(policy)
            .with("priority", LOCAL_PRIORITY)
            .with("match", matching)
            .with("action", "reroute")
            .with("nexthops", Datum::set([gateway_router.to_string()]))
            .with("external_ids", map([(MARK, node.name.as_str())]))
            .into(),
    ];
    items.extend(ips.iter().map(|ip| Item::text(&set, "addresses", ip.to_string())));
    Some(items)
}

/// The gateways to which a pod has no route, although it has an address of their family, as its node's port has none; and that port.
pub fn out_of_reach(index: &Index, pod: &Pod) -> Option<(String, Vec<IpAddr>)> {
    let gateways = index.external_gateways(&pod.name.namespace)?;
    let uplink = Uplink::to_external_gateways(index.nodes.get(&pod.node)?)?;
    let has = |nets: &[IpNet], gateway: IpAddr| nets.iter().any(|net| same_family(net.addr(), gateway));
    let out = gateways.ips.iter().copied();
    let out = out.filter(|gateway| has(&pod.addresses, *gateway) && !has(uplink.addresses, *gateway));
    let out: Vec<IpAddr> = out.collect();
    (!out.is_empty()).then_some((uplink.router_port, out))
}

#[cfg(test)]
mod tests;
