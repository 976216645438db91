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
//! Deliberate difference: ovn-kubernetes reads a named port as every port of the protocol. Here a name is resolved: for each
//! number that destination pods give to it there is one ACL, which allows that number towards an address set of exactly
//! those pods (owner types `NetworkPolicyNamedPort` and `PodSelectorNamedPort`). When no pod declares the name, nothing is
//! allowed.

mod acl;
mod block;
mod matching;
mod set;

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::{addr, ovn_name};

use crate::config::Config;
use crate::index::policy::{Direction, Policy, PolicyStore};
use crate::index::{Namespace, Node, Pod};
use crate::plan::cluster::port_group;
use crate::plan::columns::owner_ids;
use crate::plan::{DesiredRow, Item, RowKey};
use api::NamespacedName;

/// Owner type of a namespace's default-deny rows.
const NAMESPACE_TYPE: &str = "NetpolNamespace";
/// Owner type of a policy's rows.
const POLICY_TYPE: &str = "NetworkPolicy";
/// Owner type of a policy's ACLs for named ports.
const NAMED_PORT_TYPE: &str = "NetworkPolicyNamedPort";

fn deny_id(namespace: &str, direction: Direction) -> String {
    ovn_name::owner_id(NAMESPACE_TYPE, &[namespace, direction.text()])
}

fn policy_id(policy: &NamespacedName) -> String {
    ovn_name::owner_id(POLICY_TYPE, &[&policy.namespace, &policy.name])
}

/// The rows of a policy: port group, ACLs, and the address sets of its peers and named ports.
pub fn policy_items(store: &PolicyStore, policy: &Policy, config: &Config) -> Vec<Item> {
    let id = policy_id(&policy.name);
    let group = port_group(&id);
    let name = format!("{}:{}", policy.name.namespace, policy.name.name);
    let row = DesiredRow::new(group.clone()).with("name", group.hashed_name());
    let mut items = vec![Item::from(row.with("external_ids", owner_ids(&id, POLICY_TYPE, &name, &[])))];
    for direction in Direction::ALL {
        for (index, rule) in policy.rules(direction).into_iter().flatten().enumerate() {
            items.extend(acl::rule_items(store, policy, direction, index, rule, &group, config));
        }
    }
    for peer in policy.peer_selectors() {
        items.extend(set::peer_rows(peer, config));
    }
    for port in policy.named_ports() {
        for number in store.named_ports().numbers(&port) {
            items.extend(set::named_rows(&port, number, config));
        }
    }
    items
}

/// The default-deny rows of a namespace; none when it has no policy. Both directions are written, also when only one is
/// in use.
pub fn namespace_items(store: &PolicyStore, namespace: &str, config: &Config) -> Vec<Item> {
    if store.in_namespace(namespace).next().is_none() {
        return Vec::new();
    }
    let mut items = Vec::new();
    for direction in Direction::ALL {
        let id = deny_id(namespace, direction);
        let group = port_group(&id);
        let ids = owner_ids(&id, NAMESPACE_TYPE, namespace, &[("direction", direction.text())]);
        let row = DesiredRow::new(group.clone()).with("name", group.hashed_name()).with("external_ids", ids);
        items.push(row.into());
        items.extend(acl::deny_items(namespace, direction, &group, config));
    }
    items
}

/// The memberships of a pod: in the port groups of the policies that select it and of the directions they isolate, when
/// its `port` is there; and in the address sets of which it is a peer.
pub fn pod_items(
    store: &PolicyStore,
    pod: &Pod,
    port: Option<&RowKey>,
    namespaces: &BTreeMap<String, Namespace>,
) -> Vec<Item> {
    let mut items = Vec::new();
    if let Some(port) = port {
        let mut isolated = [false; 2];
        for policy in store.in_namespace(&pod.name.namespace).filter(|policy| policy.selects(pod)) {
            items.push(Item::link(&port_group(&policy_id(&policy.name)), "ports", port));
            for (isolated, direction) in isolated.iter_mut().zip(Direction::ALL) {
                *isolated |= policy.rules(direction).is_some();
            }
        }
        for (isolated, direction) in isolated.into_iter().zip(Direction::ALL) {
            if isolated {
                let group = port_group(&deny_id(&pod.name.namespace, direction));
                items.push(Item::link(&group, "ports", port));
            }
        }
    }
    for peer in store.peers_of(pod, namespaces) {
        items.extend(set::peer_members(peer, pod));
    }
    for (named, number) in store.named_ports().of_pod(&pod.name) {
        items.extend(set::named_members(named, number, pod));
    }
    items
}

/// The memberships of a node in the sets of peers that select the namespace that represents the nodes. They are the addresses
/// from which the node's own programs reach pods: the management port's, and the gateway router's on the join switch for
/// connections through a service.
pub fn node_items(store: &PolicyStore, node: &Node, config: &Config) -> Vec<Item> {
    let management = node.subnets.iter().filter_map(addr::management_of);
    let join = config.join_addresses(node.id).into_iter().map(|net| net.addr());
    let addresses: Vec<IpAddr> = management.chain(join).collect();
    let peers = store.host_network().peers();
    peers.flat_map(|peer| set::peer_addresses_in(peer, &addresses)).collect()
}

#[cfg(test)]
mod tests;
