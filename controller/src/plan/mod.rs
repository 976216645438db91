//! Pure planning: from the [index](crate::index) to the rows and edges that NB must hold. Nothing here does I/O or knows a
//! client, and the same index always gives the same items.

pub mod cluster;
pub mod columns;
pub mod gateway;
pub mod host_port;
pub mod key;
pub mod network;
pub mod node;
pub mod pod;
pub mod policy;
pub mod row;
pub mod service;

pub use row::{DesiredRow, Edge, Item, Key, Member, RowKey, Table};

use crate::config::Config;
use crate::index::{Index, Pod};
use crate::unit::Unit;

/// The items of a unit; none if its object does not exist (any more).
pub fn plan(index: &Index, config: &Config, unit: &Unit) -> Vec<Item> {
    match unit {
        Unit::Cluster => cluster::items(config),
        Unit::Node(name) => index.nodes.get(name).map(|node| node::items(node, config)).unwrap_or_default(),
        Unit::HostPorts(name) => {
            index.nodes.get(name).map(|node| host_port::items(index, node, config)).unwrap_or_default()
        }
        Unit::NodePeers(name) => {
            let node = index.nodes.get(name);
            node.map(|node| policy::node_items(&index.policies, node, config)).unwrap_or_default()
        }
        Unit::Network(name) => {
            let network = index.networks.ready.get(name);
            network.map(|network| network::items(network, config)).unwrap_or_default()
        }
        Unit::NetworkOnNode(name, node) => index
            .networks
            .ready
            .get(name)
            .zip(index.nodes.get(node))
            .map(|(network, node)| network::node_items(network, node, config))
            .unwrap_or_default(),
        Unit::Pod(name) => index.pods.get(name).map(|pod| pod_items(index, pod)).unwrap_or_default(),
        Unit::Service(name) => index
            .services
            .served(name)
            .map(|service| {
                let endpoints = index.services.endpoints(name);
                service::service_items(&service, &endpoints, service::NodesView(&index.nodes), config)
            })
            .unwrap_or_default(),
        Unit::PolicyNamespace(name) => policy::namespace_items(&index.policies, name, config),
        Unit::Policy(name) => index
            .policies
            .get(name)
            .map(|found| policy::policy_items(&index.policies, found, config))
            .unwrap_or_default(),
    }
}

/// A pod's ports and the memberships of the one on the cluster's network, in one transaction.
fn pod_items(index: &Index, pod: &Pod) -> Vec<Item> {
    let mut items = pod::items(index, pod);
    let port = pod::port_key(pod);
    let port = (!items.is_empty()).then_some(&port);
    if let (Some(_), Some(node)) = (port, index.nodes.get(&pod.node)) {
        let further = pod.attachments.iter();
        items.extend(further.flat_map(|attached| network::port_items(index, pod, node, attached)));
    }
    items.extend(policy::pod_items(&index.policies, pod, port, &index.namespaces));
    items
}
