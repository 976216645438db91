//! Pure planning: from the [index](crate::index) to the rows and edges that NB must hold. Nothing here does I/O or knows a
//! client, and the same index always gives the same items.

pub mod cluster;
pub mod columns;
pub mod external_gateways;
#[cfg(test)]
mod fixture;
pub mod gateway;
pub mod host_port;
pub mod key;
pub mod network;
pub mod node;
pub mod pod;
pub mod policy;
pub mod row;
pub mod service;
pub mod uplink;

pub use row::{DesiredRow, Edge, Item, Key, Member, RowKey, Table};

use std::collections::BTreeMap;

use api::NamespacedName;

use crate::config::Config;
use crate::index::{Index, Pod};
use crate::unit::Unit;
use policy::Domain;

/// The items of a unit; none if its object does not exist (any more).
pub fn plan(index: &Index, config: &Config, unit: &Unit) -> Vec<Item> {
    match unit {
        Unit::Cluster => cluster::items(config),
        Unit::Node(name) => index.nodes.get(name).map(|node| node::items(node, config)).unwrap_or_default(),
        Unit::HostPorts(name) => {
            let node = index.nodes.get(name).filter(|_| config.default_network);
            node.map(|node| host_port::items(index, node, config)).unwrap_or_default()
        }
        Unit::ExternalGateways(name) => {
            let node = index.nodes.get(name).filter(|_| config.default_network);
            node.map(|node| external_gateways::node_items(index, node, config)).unwrap_or_default()
        }
        Unit::NodePeers(name) => {
            let node = index.nodes.get(name);
            node.map(|node| policy::node_items(&Domain::cluster(&index.policies, config), node))
                .unwrap_or_default()
        }
        Unit::Network(name) => {
            let network = index.networks.ready.get(name);
            network.map(|network| network::items(network, &index.networks, config)).unwrap_or_default()
        }
        Unit::NetworkOnNode(name, node) => index
            .networks
            .ready
            .get(name)
            .zip(index.nodes.get(node))
            .map(|(network, node)| network::node_items(network, node, config))
            .unwrap_or_default(),
        Unit::Pod(name) => index.pods.get(name).map(|pod| pod_items(index, pod, config)).unwrap_or_default(),
        Unit::Service(name) => index
            .services
            .served(name)
            .map(|service| {
                let endpoints = index.services.endpoints(name);
                service::service_items(&service, &endpoints, service::NodesView(&index.nodes), config)
            })
            .unwrap_or_default(),
        Unit::PolicyNamespace(name) => {
            policy::namespace_items(&Domain::cluster(&index.policies, config), name)
        }
        Unit::Policy(name) => index
            .policies
            .get(name)
            .map(|found| policy::policy_items(&Domain::cluster(&index.policies, config), found))
            .unwrap_or_default(),
        Unit::MultiPolicyNamespace(network, name) => {
            let domain = virtual_domain(index, network, config);
            domain.map(|domain| policy::namespace_items(&domain, name)).unwrap_or_default()
        }
        Unit::MultiPolicy(network, name) => {
            let on = index.multi_policies.on(network).and_then(|on| on.store.get(name));
            let domain = virtual_domain(index, network, config);
            on.zip(domain).map(|(found, domain)| policy::policy_items(&domain, found)).unwrap_or_default()
        }
    }
}

/// The policies of a virtual network; none if it is not ready or has none.
fn virtual_domain<'a>(index: &'a Index, network: &NamespacedName, config: &'a Config) -> Option<Domain<'a>> {
    let on = index.multi_policies.on(network)?;
    Some(Domain::virtual_network(&on.store, index.networks.ready.get(network)?, config))
}

/// A pod's ports, their memberships and the pod's routes, in one transaction.
fn pod_items(index: &Index, pod: &Pod, config: &Config) -> Vec<Item> {
    let mut items = pod::items(index, pod);
    let ports: Vec<RowKey> = (!items.is_empty()).then(|| pod::port_key(pod)).into_iter().collect();
    if !ports.is_empty() {
        items.extend(external_gateways::pod_items(index, pod, config));
    }
    // By network.
    let mut further: BTreeMap<&NamespacedName, Vec<RowKey>> = BTreeMap::new();
    // Where pods have the cluster's network, one that does not get it gets no other.
    let may_have = !ports.is_empty() || (!config.default_network && !pod.host_network);
    if let (true, Some(node)) = (may_have, index.nodes.get(&pod.node)) {
        for attached in &pod.attachments {
            let port = network::port_items(index, pod, node, attached);
            let keys = further.entry(&attached.network).or_default();
            keys.extend((!port.is_empty()).then(|| network::port_key(pod, attached)));
            items.extend(port);
        }
    }
    items.extend(policy::pod_items(
        &Domain::cluster(&index.policies, config),
        pod,
        &ports,
        &index.namespaces,
    ));
    for (network, ports) in further {
        let there = index.multi_policies.on(network).and_then(|on| on.pods.get(&pod.name));
        let domain = virtual_domain(index, network, config);
        if let Some((there, domain)) = there.zip(domain) {
            items.extend(policy::pod_items(&domain, there, &ports, &index.namespaces));
        }
    }
    items
}
