//! Services as OVN load balancers: one row for each service, protocol and shape, named and attached as ovn-kubernetes does.
//!
//! A service that looks the same everywhere is one `…_cluster` load balancer in the cluster's group. Node ports, Local
//! traffic policies, topology hints and endpoints on hosts look different from node to node: then switch and gateway router of
//! every node get rows of their own, and rows that are equal are merged into one (`…_merged`).

mod balancer;
mod rules;
mod source_ranges;
mod topology;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::Config;
use crate::index::{Node, Protocol};
use crate::plan::Item;
use api::service::{Endpoint, Service};

pub(super) use balancer::options as balancer_options;
use balancer::{Balancer, Kind};

/// The nodes, by name, as load balancers depend on them.
#[derive(Debug, Clone, Copy)]
pub struct NodesView<'a>(pub &'a BTreeMap<String, Node>);

impl<'a> NodesView<'a> {
    /// Nodes that have a switch, in the order of their names.
    fn with_switch(self) -> impl Iterator<Item = &'a Node> {
        self.0.values().filter(|node| !node.subnets.is_empty())
    }
}

/// True when the node has a gateway router.
fn has_gateway(node: &Node) -> bool {
    node.gateway.is_some() && node.chassis.is_some()
}

/// False where the node's gateway is configured to serve no node ports.
fn serves_node_ports(node: &Node) -> bool {
    node.gateway.as_ref().is_none_or(|gateway| gateway.node_port_enable == "true")
}

/// The addresses on which a node serves node ports: those of its gateway, or its own until the gateway is known.
fn node_addresses(node: &Node) -> Vec<IpAddr> {
    match &node.gateway {
        Some(gateway) => gateway.ip_addresses.iter().map(IpNet::addr).collect(),
        None => node.addresses.clone(),
    }
}

/// All rows and edges of one service. `endpoints` are those of all its slices.
pub fn service_items(
    service: &Service,
    endpoints: &[Endpoint],
    nodes: NodesView<'_>,
    config: &Config,
) -> Vec<Item> {
    if !service.is_balanced() {
        return Vec::new();
    }
    let mut balancers = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let exposures = rules::exposures(service, protocol, endpoints, config);
        let (of_nodes, of_cluster): (Vec<_>, Vec<_>) =
            exposures.iter().partition(|exposure| exposure.per_node);
        let vips = of_cluster.iter().flat_map(|exposure| exposure.cluster_vips()).collect::<BTreeMap<_, _>>();
        if !vips.is_empty() {
            balancers.push(Balancer::of_cluster(protocol, vips));
        }
        let mut per_node = Vec::new();
        if !of_nodes.is_empty() {
            for node in nodes.with_switch() {
                per_node.extend(node_balancers(protocol, &of_nodes, node, config));
            }
        }
        balancers.extend(balancer::merge(per_node));
    }
    let mut items: Vec<Item> =
        balancers.iter().flat_map(|balancer| balancer.items(service, config)).collect();
    items.extend(source_ranges::items(service, nodes, config));
    items
}

/// The load balancers of one node, before merging.
fn node_balancers(
    protocol: Protocol,
    exposures: &[&rules::Exposure<'_>],
    node: &Node,
    config: &Config,
) -> Vec<Balancer> {
    let mut switch = BTreeMap::new();
    let mut router = BTreeMap::new();
    let mut router_without_snat = BTreeMap::new();
    for exposure in exposures {
        switch.extend(exposure.switch_vips(node, config));
        for (vip, targets) in exposure.router_vips(node, config) {
            // The client's address is kept, and so is that of who refuses it.
            if exposure.external_local { &mut router_without_snat } else { &mut router }.insert(vip, targets);
        }
    }
    // As ovn-kubernetes has it, where there is nothing but refusals.
    if router.is_empty() && router_without_snat.values().all(String::is_empty) {
        std::mem::swap(&mut router, &mut router_without_snat);
    }
    let gateway = has_gateway(node);
    let mut found = Vec::new();
    if gateway && switch == router && !switch.is_empty() {
        found.push(Balancer::of_node(protocol, Kind::RouterAndSwitch, &node.name, switch));
    } else {
        if gateway && !router.is_empty() {
            found.push(Balancer::of_node(protocol, Kind::Router, &node.name, router));
        }
        if !switch.is_empty() {
            found.push(Balancer::of_node(protocol, Kind::Switch, &node.name, switch));
        }
    }
    if gateway && !router_without_snat.is_empty() {
        found.push(Balancer::of_node(protocol, Kind::LocalRouter, &node.name, router_without_snat));
    }
    found
}

#[cfg(test)]
mod tests;
