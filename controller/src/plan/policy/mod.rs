//! Network policies as OVN port groups, ACLs and address sets, named and shaped as ovn-kubernetes does.
//!
//! - Each namespace with policies has two *default-deny* port groups, one for each direction. A pod is in them for the
//!   directions in which some policy selects it.
//! - Each policy has a port group with the pods it selects, and ACLs that allow what its rules allow.
//! - Each distinct peer selector has an address set (one for each address family), shared by all policies that use it.
//!
//! Memberships are planned with the pod, not with the policy. So a new pod costs only its own memberships, and its port is
//! isolated in the transaction that creates it.
//!
//! Policies of virtual networks (MultiNetworkPolicy) have the same rows over the pods' ports and addresses there, with owner types of their
//! own and the network's name in their ids.
//!
//! Deliberate difference: ovn-kubernetes reads a named port as every port of the protocol. Here a name is resolved: for each
//! number that destination pods give to it there is one ACL, which allows that number towards an address set of exactly
//! those pods (owner types `NetworkPolicyNamedPort` and `PodSelectorNamedPort`). When no pod declares the name, nothing is
//! allowed.

mod acl;
mod block;
mod domain;
mod matching;
mod set;

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::addr;

use crate::index::policy::{Direction, Policy};
use crate::index::{Namespace, Node, Pod};
use crate::plan::cluster::port_group;
use crate::plan::{DesiredRow, Item, RowKey};
use api::NamespacedName;
pub use domain::Domain;
use domain::Owner;

fn deny_id(domain: &Domain<'_>, namespace: &str, direction: Direction) -> String {
    domain.id(Owner::Namespace, &[namespace, direction.text()])
}

fn policy_id(domain: &Domain<'_>, policy: &NamespacedName) -> String {
    domain.id(Owner::Policy, &[&policy.namespace, &policy.name])
}

/// The rows of a policy: port group, ACLs, and the address sets of its peers and named ports.
pub fn policy_items(domain: &Domain<'_>, policy: &Policy) -> Vec<Item> {
    let id = policy_id(domain, &policy.name);
    let group = port_group(&id);
    let name = format!("{}:{}", policy.name.namespace, policy.name.name);
    let row = DesiredRow::new(group.clone()).with("name", group.hashed_name());
    let mut items =
        vec![Item::from(row.with("external_ids", domain.owner_ids(&id, Owner::Policy, &name, &[])))];
    for direction in Direction::ALL {
        for (index, rule) in policy.rules(direction).into_iter().flatten().enumerate() {
            items.extend(acl::rule_items(domain, policy, direction, index, rule, &group));
        }
    }
    for peer in policy.peer_selectors() {
        items.extend(set::peer_rows(domain, peer));
    }
    for port in policy.named_ports() {
        for number in domain.store.named_ports().numbers(&port) {
            items.extend(set::named_rows(domain, &port, number));
        }
    }
    items
}

/// The default-deny rows of a namespace; none when it has no policy. Both directions are written, also when only one is
/// in use.
pub fn namespace_items(domain: &Domain<'_>, namespace: &str) -> Vec<Item> {
    if domain.store.in_namespace(namespace).next().is_none() {
        return Vec::new();
    }
    let mut items = Vec::new();
    for direction in Direction::ALL {
        let id = deny_id(domain, namespace, direction);
        let group = port_group(&id);
        let ids = domain.owner_ids(&id, Owner::Namespace, namespace, &[("direction", direction.text())]);
        let row = DesiredRow::new(group.clone()).with("name", group.hashed_name()).with("external_ids", ids);
        items.push(row.into());
        items.extend(acl::deny_items(domain, namespace, direction, &group));
    }
    items
}

/// The memberships of a pod: its `ports` that are there in the port groups of the policies that select it and of the directions they
/// isolate; and its addresses in the address sets of which it is a peer.
pub fn pod_items(
    domain: &Domain<'_>,
    pod: &Pod,
    ports: &[RowKey],
    namespaces: &BTreeMap<String, Namespace>,
) -> Vec<Item> {
    let store = domain.store;
    let mut items = Vec::new();
    if !ports.is_empty() {
        let mut join =
            |group: &RowKey| items.extend(ports.iter().map(|port| Item::link(group, "ports", port)));
        let mut isolated = [false; 2];
        for policy in store.in_namespace(&pod.name.namespace).filter(|policy| policy.selects(pod)) {
            join(&port_group(&policy_id(domain, &policy.name)));
            for (isolated, direction) in isolated.iter_mut().zip(Direction::ALL) {
                *isolated |= policy.rules(direction).is_some();
            }
        }
        for (isolated, direction) in isolated.into_iter().zip(Direction::ALL) {
            if isolated {
                join(&port_group(&deny_id(domain, &pod.name.namespace, direction)));
            }
        }
    }
    for peer in store.peers_of(pod, namespaces) {
        items.extend(set::peer_members(domain, peer, pod));
    }
    for (named, number) in store.named_ports().of_pod(&pod.name) {
        items.extend(set::named_members(domain, named, number, pod));
    }
    items
}

/// The memberships of a node in the sets of peers that select the namespace that represents the nodes. They are the addresses
/// from which the node's own programs reach pods: the management port's, and the gateway router's on the join switch for
/// connections through a service.
pub fn node_items(domain: &Domain<'_>, node: &Node) -> Vec<Item> {
    let management = node.subnets.iter().filter_map(addr::management_of);
    let join = domain.config.join_addresses(node.id).into_iter().map(|net| net.addr());
    let addresses: Vec<IpAddr> = management.chain(join).collect();
    let peers = domain.store.host_network().peers();
    peers.flat_map(|peer| set::peer_addresses_in(domain, peer, &addresses)).collect()
}

#[cfg(test)]
mod tests;
